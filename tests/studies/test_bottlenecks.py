"""Bottlenecks: one round timed again in another world, compared with whole runs in that world."""

import pandas as pd
import pytest

from sfl_sim.engine.experiment import Experiment
from sfl_sim.scenario.load import parse
from sfl_sim.studies import bottlenecks as module
from sfl_sim.studies.bottlenecks import CHANGES, speedups

OF_ONE_SERVER = [name for name, change in CHANGES.items() if not change.of_tiers]
COMPUTE = {"profile": None, "macs_per_s": 1e7}
NETWORK = {"profile": None, "uplink_bps": 2e6, "downlink_bps": 3e6, "latency_s": 0.05}


def study(method="splitfed_v1", compute=COMPUTE, network=NETWORK, speedup=2.0, workers=1, **others):
    return parse(
        {
            "data": {"train_samples": 200, "test_samples": 50},
            "train": {"rounds": 3, "batch_size": 8},
            "method": method if isinstance(method, dict) else {"name": method},
            "server": {"speedup": speedup, "workers": workers},
            "clients": {"count": 6, "compute": compute, "network": network},
            **others,
        }
    )


def walked(study):
    """Make the results of a timing-only run of every trial: its rounds by number."""
    return {
        number: ({}, pd.DataFrame(rows).assign(variant=variant.name, seed=variant.scenario.seed))
        for number, variant in enumerate(study.variants)
        for rows in [[round.row for round in Experiment(variant.scenario, None).rounds()]]
    }


def round_s(study, number=2):
    """Time a round of a run, in seconds."""
    row = walked(study)[0][1].set_index("round").loc[number]
    return row["ended_s"] - row["started_s"]


def test_a_change_gives_what_a_whole_run_in_that_world_gives():
    worlds = {
        "uplink x2": study(network=NETWORK | {"uplink_bps": 4e6}),
        "downlink x2": study(network=NETWORK | {"downlink_bps": 6e6}),
        "devices x2": study(compute=COMPUTE | {"macs_per_s": 2e7}, speedup=1.0),  # as fast a server as before
        "server x2": study(speedup=4.0),
        "workers x2": study(workers=2),
        "no latency": study(network=NETWORK | {"latency_s": 0.0}),
    }

    found = speedups(study(), walked(study())).set_index("change")

    assert list(found.index) == OF_ONE_SERVER == list(worlds)
    assert found["before_s"].tolist() == pytest.approx([round_s(study())] * len(found))
    assert len(set(found["after_s"])) == len(found)
    for change, world in worlds.items():
        assert found.loc[change, "after_s"] == pytest.approx(round_s(world, found.loc[change, "round"]), rel=1e-9)


def test_without_latency_the_way_to_the_servers_of_a_tier_takes_none(tmp_path):
    """A server reaches all clients after 5 s, which no change of the links makes shorter."""
    file = tmp_path / "reach.csv"
    file.write_text("client,edge1,edge2\n" + "".join(f"{client},5,5\n" for client in range(6)))
    far, near = (
        study("splitfed_v2", network=NETWORK | {"latency_s": latency_s}, servers={"edge": {"count": 2} | more})
        for latency_s, more in ((0.05, {"reach_s": str(file)}), (0.0, {}))
    )
    found = speedups(far, walked(far)).set_index("change")
    assert found["before_s"].iloc[0] > 5 + found.loc["no latency", "after_s"]
    assert found.loc["no latency", "after_s"] == pytest.approx(
        round_s(near, found.loc["no latency", "round"]), rel=1e-9
    )


def test_a_method_that_remembers_begins_anew_for_every_change(monkeypatch):
    """SplitFrozen that sends once would have sent everything when the first change is timed."""
    monkeypatch.setattr(module, "typical_round", lambda rounds: 1)
    method = {"name": "splitfrozen", "send_once": True}
    found = speedups(study(method), walked(study(method))).set_index("change")
    fast = study(method, network=NETWORK | {"uplink_bps": 4e6})
    assert found.loc["uplink x2", "after_s"] == pytest.approx(round_s(fast, 1), rel=1e-9)


def test_the_first_seed_of_every_variant_is_timed_again():
    several = study(seed=3, repeats=2, grid={"method.name": ["splitfed_v2", "mergesfl"], "server.order": ["cyclic"]})

    found = speedups(several, walked(several))

    assert dict.fromkeys(zip(found["variant"], found["seed"], strict=True)) == {
        (variant.name, 3): None for variant in several.variants
    }


@pytest.mark.parametrize("chosen", [1, 3])
def test_the_first_round_begins_with_the_methods_setup_and_the_last_one_ends_with_its_finish(chosen, monkeypatch):
    monkeypatch.setattr(module, "typical_round", lambda rounds: chosen)

    found = speedups(study("hydra"), walked(study("hydra")))

    assert found["before_s"].iloc[0] == pytest.approx(round_s(study("hydra"), chosen), rel=1e-9)


@pytest.mark.parametrize(("chosen", "n_rows"), [(1, len(OF_ONE_SERVER)), (2, 0)])
def test_a_round_that_depends_on_the_one_before_is_left_out(chosen, n_rows, monkeypatch):
    """SplitNN's first client takes the model over from the last one of the round before."""
    monkeypatch.setattr(module, "typical_round", lambda rounds: chosen)

    assert len(speedups(study("splitnn"), walked(study("splitnn")))) == n_rows


def test_no_run_fails_for_it(monkeypatch):
    closed = walked(study())
    monkeypatch.setattr(module, "setup_of", None)

    assert speedups(study(), closed).empty


def test_who_is_away_before_the_rounds_is_not_lost_to_them(tmp_path):
    """One of six clients arrives after a second, during the first round without it; it has sent its labels before."""
    profile = tmp_path / "late.csv"
    rows = [f"{client},{1 if client == 5 else 0},100000,100000" for client in range(6)]
    profile.write_text("\n".join(["client,start_s,end_s,period_s", *rows]))
    late = study({"name": "hydra", "cut2": 3}, clients={
        "count": 6, "compute": COMPUTE, "network": NETWORK, "availability": {"profile": str(profile), "lost": "drop"},
    })  # fmt: skip

    rounds = walked(late)

    assert rounds[0][1]["present"].tolist() == [5, 6, 6]
    assert speedups(late, rounds)["before_s"].tolist() == pytest.approx([round_s(late)] * len(OF_ONE_SERVER))
