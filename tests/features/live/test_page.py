"""The page that lays a live run beside a simulated one, of two runs whose numbers are known."""

import json
import re
from dataclasses import replace

import pandas as pd
import pytest
from synthetic_run import World, write_run

from sfl_sim.errors import ScenarioError
from sfl_sim.features.live.page import _LiveAndSimulated, live_in_terminal, write_live
from sfl_sim.report.frames import merge
from sfl_sim.report.load import load
from sfl_sim.report.terminal import in_plain_text

WORLD = World(variants=World().variants[1:2], seeds=(0,), clients=3, rounds=4, batches=2)
SLOWER = 1.25
STEP = {"variant": WORLD.variants[0].name, "seed": 0, "round": 2, "samples": 16, "late_s": 0.0, "priced_s": 0.0}


def nodes(**more):
    about = {"offset_s": 0.0, "offset_bound_s": 0.0002, "slowdown": 1.0, "load": 1.5, "is_same_code": True,
             "is_lost": False, "stretched": None, "variant": WORLD.variants[0].name, "seed": 0}  # fmt: skip
    rows = [about | {"node": node} for node in ("server", "0", "1", "2")]
    rows[2] |= more
    return pd.DataFrame(rows)


def write_pair(place, **more):
    """A live run whose rounds take longer than those of the simulated one beside it."""
    simulated, live = (write_run(place / name, WORLD) for name in ("simulated", "live"))
    rounds = pd.read_parquet(live / "rounds.parquet")
    for table in ("rounds", "ops"):
        frame = pd.read_parquet(live / f"{table}.parquet")
        times = [column for column in frame if column in ("started_s", "ended_s", "requested_s")]
        frame.assign(**{column: SLOWER * frame[column] for column in times}).to_parquet(live / f"{table}.parquet")
    messages = [
        {"node": link, "client": client, "kind": kind, "size_bytes": 1000, "moved_bytes": 1000 + frame, "macs": 0.0}
        for client in range(3) for link, kind, frame in (("uplink", "smashed", 120), ("downlink", "gradient", 80))
    ]  # fmt: skip
    pd.DataFrame([STEP | message for message in messages]).to_parquet(live / "steps.parquet")
    nodes(**more).to_parquet(live / "nodes.parquet")
    assert len(rounds) == WORLD.rounds
    return simulated, live


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("pair"))


def laid(pair, recorded=None):
    """What the page is made of."""
    simulated, live = pair
    return _LiveAndSimulated(merge([load(live), load(simulated)]), live, load(recorded) if recorded else None)


def cells(table):
    return [[cell.text for cell in row] for row in table.rows]


def test_it_says_how_many_times_as_long_rounds_take(pair):
    rounds, _ = laid(pair).headlines()
    assert rounds.facts["ratio"] == pytest.approx(SLOWER)
    assert rounds.facts["ratios"] == pytest.approx([SLOWER] * (WORLD.rounds - 1))
    (table,) = laid(pair).rounds_panel().tables
    assert [row[3] for row in cells(table)] == [f"{SLOWER:.3f}"] * WORLD.rounds
    assert [row[4] for row in cells(table)] == ["100\u00a0%"] * WORLD.rounds


def test_the_terminal_says_what_the_page_says_and_how_long_rounds_take(pair):
    text = in_plain_text(live_in_terminal(*pair))
    assert f"{SLOWER:.2f} times as long" in text
    assert text.count(f"{SLOWER:.3f}") == WORLD.rounds


def test_weights_are_compared_with_those_of_the_recorded_sequence_if_there_is_one(pair, tmp_path):
    assert laid(pair).headlines()[1].facts == {"same place": 1.0, "equal weights": True}
    summary = json.loads((pair[0] / "summary.json").read_text())
    summary["variants"][0]["weights_digest"] = "other"
    recorded = write_run(tmp_path / "recorded", WORLD)
    (recorded / "summary.json").write_text(json.dumps(summary))
    assert laid(pair, recorded).headlines()[1].facts["equal weights"] is False


def test_of_a_simulation_without_training_no_weights_are_compared(pair, tmp_path):
    timed = write_run(tmp_path / "timed", replace(WORLD, trained=False))
    assert laid((timed, pair[1])).headlines()[1].facts["equal weights"] is None


def test_another_sequence_at_the_server_is_counted(pair, tmp_path):
    simulated, live = write_pair(tmp_path)
    ops = pd.read_parquet(live / "ops.parquet")
    at_server = (ops["node"] == "server") & (ops["round"] == 3)
    ops.loc[at_server, "client"] = ops.loc[at_server, "client"].map({0: 1, 1: 0, 2: 2})
    at_server = (ops["node"] == "server") & (ops["round"] == 4)
    ops.loc[at_server, "client"] = ops.loc[at_server, "client"].map({0: 1, 1: 2, 2: 0})
    ops.to_parquet(live / "ops.parquet")
    (table,) = laid((simulated, live)).rounds_panel().tables
    shares = {row[0]: row[4] for row in cells(table)}
    assert shares["2"] == "100\u00a0%"
    assert shares["3"] == "33\u00a0%"
    assert shares["4"] == "0\u00a0%"
    assert laid((simulated, live)).headlines()[1].facts["same place"] < 1


def test_messages_have_the_bytes_that_crossed_beside_those_that_are_priced(pair):
    (table,) = laid(pair).bytes_panel().tables
    framing = {row[0]: row[3] for row in cells(table)}
    assert framing == {"uplink smashed": "120 B", "downlink gradient": "80 B"}


def test_operations_are_compared_by_kind_and_by_client(pair):
    page = laid(pair)
    (by_kind,), (by_client,) = page.operations_panel().tables, page.clients_panel().tables
    assert "server train" in [row[0] for row in cells(by_kind)]
    assert all(row[3] == "1.25" for row in [*cells(by_kind), *cells(by_client)] if row[3] != "–")
    assert {row[0].split(",")[0] for row in cells(by_client)} == {"client 0", "client 1", "client 2"}


@pytest.mark.parametrize(
    ("about", "note"),
    [({"is_lost": True}, "gone"), ({"is_same_code": False}, "other code or packages"), ({}, "")],
)
def test_a_node_that_was_not_like_the_others_is_noted(about, note, tmp_path):
    page = laid(write_pair(tmp_path, **about))
    (table,) = page.nodes_panel().tables
    assert [row[3] for row in cells(table)] == ["", "", note, ""]
    assert [row[0] for row in cells(table)] == ["server", "client 0", "client 1", "client 2"]


def test_how_far_clocks_differ_and_devices_were_stretched_is_told(tmp_path):
    page = laid(write_pair(tmp_path, offset_s=0.0123, stretched=7.5))
    (table,) = page.nodes_panel().tables
    assert [row[1] for row in cells(table)] == ["0.00 ms", "0.00 ms", "12.30 ms", "0.00 ms"]
    assert [row[2] for row in cells(table)] == ["–", "–", "7.5 times", "–"]
    assert page.headlines()[-1].facts == {"stretched": True, "links": "sleep"}


def test_links_of_the_kernel_and_a_latency_that_was_missing_are_told(tmp_path):
    page = laid(write_pair(tmp_path, stretched=7.5, links="netns without latency"))
    told = page.headlines()[-1]
    assert told.facts["links"] == "netns without latency"
    assert "without their latency" in told.text


def test_both_charts_of_a_round_have_one_axis(pair):
    figures = [figure for _, figure in laid(pair).gantt_panel().drawn().figures]
    assert len(figures) == 2
    assert figures[0].layout.xaxis.range == figures[1].layout.xaxis.range


def test_the_page_is_written_with_all_of_it(pair, tmp_path):
    simulated, live = pair
    text = write_live(simulated, live, tmp_path / "page.html").read_text()
    assert text.count('<p class="headline">') == 2
    beside = ["Measured", "Simulated", "Ratio", "Waited, measured", "Waited, simulated", "Number"]
    assert re.findall('<th scope="col">(.*?)</th>', text)[:27] == [
        *["Round", *beside[:3], "Jobs at the same place"], *["Operation", *beside], *["Client, place", *beside],
        *["Message", "Priced", "Moved", "Framing"], *["Node", "Clock", "Stretched", "Note"],
    ]  # fmt: skip


def test_two_simulated_runs_or_several_seeds_are_refused(pair, tmp_path):
    simulated, live = pair
    with pytest.raises(ScenarioError) as raised:
        write_live(live, simulated, tmp_path / "page.html")
    assert (raised.value.key, raised.value.found) == ("compare", str(simulated))
    several = write_run(tmp_path / "several", replace(WORLD, seeds=(0, 1)))
    with pytest.raises(ScenarioError) as raised:
        write_live(several, live, tmp_path / "page.html")
    assert raised.value.key == "compare"
