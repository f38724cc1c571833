from __future__ import annotations

import html
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from read_table import read
from synthetic_run import FramesOf, Setting, World, retold, write_run

from sfl_sim.report.comparison import repriced_table
from sfl_sim.report.display import duration
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages.headline import headline, told_by_seeds

if TYPE_CHECKING:
    from pathlib import Path


def plain(sentence: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", sentence)).replace("\u00a0", " ").replace("● ", "")


def test_it_names_who_reaches_the_target_first(frames: Frames) -> None:
    time_s = frames.summary.groupby("variant")["time_to_accuracy_s"].median().sort_values()

    first = plain(headline(frames)[0])

    assert first.startswith(f"{time_s.index[0]} reaches 70 % accuracy first, after ")
    assert f"the next is {time_s.index[1]} after " in first


def test_it_says_how_many_times_faster_than_the_baseline_that_is(frames: Frames) -> None:
    seconds = {"splitfed_v2, fcfs": 90.0, "splitfed_v2, cyclic": 60.0, "hydra, cyclic": 30.0}
    summary = frames.summary.assign(time_to_accuracy_s=frames.summary["variant"].map(seconds), best_accuracy=0.875)
    relative = summary.assign(reference="splitfed_v2, cyclic")

    absolute, share = (plain(headline(replace(frames, summary=each))[0]) for each in (summary, relative))

    assert ", 3.00× as fast as splitfed_v2, fcfs, the slowest; the next is splitfed_v2, cyclic after 1 min." in absolute
    assert ", 2.00× as fast as splitfed_v2, cyclic, of whose best accuracy the target is 80 %;" in share
    near = plain(headline(replace(frames, summary=relative.assign(best_accuracy=0.7 / 0.995)))[0])
    assert "of whose best accuracy the target is 99.5 %;" in near


SEEDS = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_a_lead_is_told_without_doubt_only_if_no_seed_of_the_one_comes_near_one_of_the_other(
    seeds: list[tuple[int, int]],
) -> None:
    ours, theirs = (pd.Series(numbers, dtype=float) for numbers in zip(*seeds, strict=True))
    ahead = sum(one < other for one, other in seeds)

    told = told_by_seeds(ours, theirs, "{:.0f}".format)

    if len(seeds) == 1:
        assert told.endswith("with one seed." if ahead == 0 and seeds[0][0] == seeds[0][1] else "may say otherwise.")
        return
    assert (told == "") == (max(ours) < min(theirs))
    ties = sum(one == other for one, other in seeds)
    if 0 < ties < len(seeds):
        assert told.endswith(f", and as good with {ties}.")
    elif told and ahead:
        assert told.endswith(
            f"is ahead with {'all ' if ahead == len(seeds) else ''}{ahead}"
            f"{'' if ahead == len(seeds) else f' of {len(seeds)}'}."
        )
    if all(one == other for one, other in seeds):
        assert "equal" in told


def test_what_reads_alike_is_no_lead() -> None:
    ours = pd.Series([60.0, 70.0, 80.0])
    assert told_by_seeds(ours, ours + 0.0002, duration) == " Both are equal with every seed."
    assert told_by_seeds(ours.head(1), ours.head(1) + 0.0002, duration) == " Both are equal, with one seed."
    late = pd.Series([60.0002, np.inf, np.inf])
    assert told_by_seeds(ours, late, duration).endswith("is ahead with 2 of 3, and as good with 1.")


def to_target(frames: Frames, seconds: dict[str, list[float]]) -> str:
    """The first headline when seeds 0 and 1 of these variants reach the target after so many seconds."""
    return plain(headline(retold(frames, time_to_accuracy_s=seconds))[0])


def test_a_first_place_that_another_seed_would_give_away_is_told_with_its_doubt(frames: Frames) -> None:
    apart = {"splitfed_v2, fcfs": [10.0, 20.0], "splitfed_v2, cyclic": [30.0, 40.0], "hydra, cyclic": [50.0, 60.0]}
    crossed = apart | {"splitfed_v2, cyclic": [12.0, 19.0]}
    late = apart | {"splitfed_v2, fcfs": [10.0, 20.0], "splitfed_v2, cyclic": [30.0, np.nan]}

    assert "seed" not in to_target(frames, apart)
    assert "The ranges over seeds overlap: seed by seed, the first is ahead with 1 of 2." in to_target(frames, crossed)
    assert "no seed" not in to_target(frames, late)


def test_a_seed_that_misses_the_target_is_told_beside_the_time(frames_of: FramesOf) -> None:
    alone = World(variants=World().variants[:1], seeds=(0, 1, 2), clients=3, rounds=4)
    frames = frames_of(alone)
    summary = frames.summary.assign(time_to_accuracy_s=[10.0, 20.0, np.nan], rounds_to_accuracy=[2.0, 3.0, np.nan])

    (sentence,) = headline(replace(frames, summary=summary))

    assert "after 20 s of simulated time and 3 rounds (with 2 of 3 seeds)" in plain(sentence)


def test_that_no_other_variant_reaches_the_target_is_qualified_where_one_of_its_seeds_does(frames: Frames) -> None:
    never = [np.nan, np.nan]
    seconds = {"splitfed_v2, fcfs": [10.0, 20.0], "splitfed_v2, cyclic": [30.0, np.nan], "hydra, cyclic": never}
    nobody = seconds | {"splitfed_v2, fcfs": never}

    assert to_target(frames, seconds).endswith("no other variant reaches it with more than half of its seeds.")
    assert to_target(frames, seconds | {"splitfed_v2, cyclic": never}).endswith("no other variant reaches it.")
    assert to_target(frames, nobody).endswith("is reached by no variant with more than half of its seeds.")


def test_the_best_accuracy_is_doubted_where_seeds_disagree(frames_of: FramesOf, small: World) -> None:
    frames = frames_of(replace(small, seeds=(0, 1)))
    accuracy = {"splitfed_v2, fcfs": [0.5, 0.7], "splitfed_v2, cyclic": [0.4, 0.6]}

    sentences = headline(retold(frames, accuracy=accuracy))

    assert plain(sentences[1]).endswith("The ranges over seeds overlap: seed by seed, the first is ahead with all 2.")
    assert "But the accuracies" in plain(sentences[2])


def test_a_timing_only_run_tells_lost_clients_beside_the_time(frames_of: FramesOf, small: World) -> None:
    frames = frames_of(replace(small, trained=False))
    fast = frames.summary.groupby("variant")["simulated_s"].median().idxmin()
    rounds = frames.rounds.assign(present=4.0, lost_device_s=0.0, lost_bytes=0.0)
    rounds["lost"] = np.where(rounds["variant"] == fast, 2.0, 0.0)

    first, *_ = headline(replace(frames, rounds=rounds))

    assert "per round (50 % of its participants drop out), the least of all; " in plain(first)
    assert plain(first).endswith("(none drop out). This is one seed: another may say otherwise.")


def repriced(frames: Frames, doubtful: str | None) -> Frames:
    """As if this run had been repriced, with another bandwidth, and one variant would have to be trained."""
    verdicts = [
        {"variant": name, "seed": int(seed), "rounds": 30, "valid_rounds": 30 * (name != doubtful),
         "reason": "round 1: client 1 would be served before client 0" if name == doubtful else None,
         "before_s": 200.0 + seed, "after_s": 100.0, "to_accuracy_before_s": 50.0}
        for name, seed in frames.summary[["variant", "seed"]].itertuples(index=False)
    ]  # fmt: skip
    source = {"folder": "reports/run", "scenario": "0", "changes": {"clients.network.scale": ["1.0", "4.0"]}}
    (run,) = frames.runs
    return merge([replace(run, manifest=run.manifest | {"repriced_from": source, "repriced": verdicts})])


def test_a_repriced_page_speaks_only_of_variants_whose_learning_holds(frames: Frames) -> None:
    fastest = frames.summary.groupby("variant")["time_to_accuracy_s"].median().idxmin()

    change, first, *_ = [plain(text) for text in headline(repriced(frames, doubtful=fastest))]
    _, all_hold, *_ = [plain(text) for text in headline(repriced(frames, doubtful=None))]

    assert change.startswith("With clients.network.scale 1 → 4, simulated time changes: splitfed_v2, fcfs from 3 min")
    assert first.startswith("What was learned is known to hold for 2 of 3 variants. Of these: ")
    assert f"{fastest} reaches" not in first
    assert all_hold.startswith(f"{fastest} reaches 70 % accuracy first")


def test_the_table_of_a_repriced_run_has_before_and_after(frames: Frames) -> None:
    table = repriced_table(repriced(frames, doubtful="hydra, cyclic"))

    assert table is not None
    first, _, last = read(table).values()
    assert first["Simulated time"][0] == "3 min 20 s → 1 min 40 s"
    assert first["Times as fast"][0] == "2.00×"
    assert (first["What it learned"][0], last["What it learned"][0]) == ("holds", "must be trained")
    assert repriced_table(frames) is None


def test_a_seed_that_misses_the_target_is_infinitely_late_before_and_after(frames: Frames) -> None:
    every = repriced(frames, doubtful=None)
    name, verdicts = every.variants[0].label, every.runs[0].manifest["repriced"]
    first, second = (verdict for verdict in verdicts if verdict["variant"] == name)

    def times() -> str:
        table = repriced_table(every)
        assert table is not None
        return read(table)[name]["Time to target"][0]

    reached = times()
    first["to_accuracy_before_s"] = None
    never_before = times()
    every.summary.loc[every.summary["variant"] == name, "time_to_accuracy_s"] = [40.0, np.nan]
    never = times()
    first["to_accuracy_before_s"], second["reason"] = 50.0, "round 1: client 1 would be served before client 0"
    unknown = times()

    assert reached.startswith("50 s → ")
    assert never_before == "–" + reached.removeprefix("50 s")
    assert never == "–"
    assert unknown == "50 s → –"


def test_of_many_targets_the_first_few_are_told(eight: Frames) -> None:
    targets = eight.summary["variant"].rank(method="dense") / 20  # 5 % to 40 %
    frames = replace(eight, summary=eight.summary.assign(target_accuracy=targets, time_to_accuracy_s=1.0))

    told = [plain(text) for text in headline(frames)]

    assert len([text for text in told if " reaches " in text]) == 3
    assert "5 more targets below." in told


def test_it_says_what_an_order_costs(frames: Frames) -> None:
    """Seed by seed: the clients of one are three times as slow as those of the other."""
    run_s = {"splitfed_v2, fcfs": [100.0, 300.0], "splitfed_v2, cyclic": [150.0, 330.0], "hydra, cyclic": [1.0, 1.0]}
    more = (1.5 + 1.1) / 2 - 1  # and not 240 / 200 - 1

    cost, *_ = [plain(text) for text in headline(retold(frames, simulated_s=run_s))[1:]]

    assert cost.startswith("With splitfed_v2, serving in cyclic order takes ")
    share = float(re.search(r"takes ([\d.]+) % more simulated time than arrival order", cost)[1])
    assert share == pytest.approx(100 * more, abs=0.6)


def test_what_an_order_costs_is_doubted_where_seeds_disagree(frames: Frames) -> None:
    run_s = {"splitfed_v2, fcfs": [100.0, 100.0], "splitfed_v2, cyclic": [150.0, 90.0], "hydra, cyclic": [1.0, 1.0]}

    cost = plain(headline(retold(frames, simulated_s=run_s))[1])

    assert "takes 20 % more simulated time than arrival order" in cost
    assert "But only 1 of 2 seeds agree that it takes more time" in cost


def test_an_order_is_compared_whatever_its_settings(frames_of: FramesOf, small: World) -> None:
    bounded = Setting("splitfed_v2, bounded_wait, max_wait_s=10", "splitfed_v2", "bounded_wait", 0.8, 0.1)

    texts = [plain(text) for text in headline(frames_of(replace(small, variants=(*small.variants, bounded))))]

    assert [text.partition(" takes ")[0] for text in texts if " takes " in text] == [
        "With splitfed_v2, serving in cyclic order",
        "With splitfed_v2, serving in bounded_wait order (max_wait_s=10)",
    ]


def test_an_order_is_found_wherever_the_grid_names_it(tmp_path: Path, small: World) -> None:
    folder = write_run(tmp_path / "run", small)
    scenario = yaml.safe_load((folder / "scenario.yaml").read_text())
    for choice in scenario["grid"]:
        choice["server"] = {"order": choice.pop("server.order")}
    (folder / "scenario.yaml").write_text(yaml.safe_dump(scenario))

    texts = [plain(text) for text in headline(merge([load(folder)]))]

    assert any(text.startswith("With splitfed_v2, serving in cyclic order takes ") for text in texts)


def test_of_many_orders_the_costliest_of_every_method_is_told(eight: Frames) -> None:
    slow = {"splitfed_v2, label_aware": 3, "hydra, bounded_wait, max_wait_s=10": 2}
    factor = eight.summary["variant"].map(slow).fillna(1)
    frames = replace(eight, summary=eight.summary.assign(simulated_s=factor * eight.summary["simulated_s"]))

    costs = [plain(text) for text in headline(frames) if " takes " in text]

    assert [text.partition(": it takes ")[0] for text in costs] == [
        "With splitfed_v2, the costliest order is label_aware",
        "With hydra, the costliest order is bounded_wait (max_wait_s=10)",
    ]


def test_orders_are_compared_within_one_run_only(tmp_path: Path, small: World) -> None:
    runs = [replace(small, name=variant.name, variants=(variant,)) for variant in small.variants]
    frames = merge([load(write_run(tmp_path / run.name, run)) for run in runs])

    assert not [text for text in headline(frames) if " takes " in text]


def test_orders_are_compared_within_a_method_only(frames_of: FramesOf, small: World) -> None:
    fcfs, _, hydra = World().variants

    assert len(headline(frames_of(replace(small, variants=(fcfs, hydra))))) == 2  # the target is not reached, the best


def test_an_order_that_comes_with_other_clients_is_not_compared(frames: Frames) -> None:
    preset = (frames.clients["variant"] == "splitfed_v2, cyclic") & (frames.clients["client"] >= 5)

    assert len(headline(frames)) == 1 + len(headline(replace(frames, clients=frames.clients[~preset])))


def test_a_target_that_nobody_reaches_gives_way_to_the_best_accuracy(frames_of: FramesOf, small: World) -> None:
    frames = frames_of(small)
    best = frames.summary.groupby("variant")["accuracy"].median().idxmax()

    unreached, most_accurate, *_ = (plain(text) for text in headline(frames))

    assert unreached == "The target of 70 % accuracy is not reached."
    assert most_accurate.startswith(f"{best} ends with the best accuracy, ")


def test_a_single_variant_is_not_compared(frames_of: FramesOf) -> None:
    alone = World(variants=(Setting("hydra, cyclic", "hydra", "cyclic", 0.9, 0.0),), clients=3)

    (sentence,) = headline(frames_of(alone))

    assert re.fullmatch(r"hydra, cyclic reaches 70 % accuracy after .* and \d+ rounds\.", plain(sentence))


def test_a_timing_only_run_speaks_of_time(frames_of: FramesOf, small: World) -> None:
    frames = frames_of(replace(small, trained=False))

    first, *_ = (plain(text) for text in headline(frames))

    assert re.search(r"takes .* of simulated time per round", first)


def test_who_is_as_fast_is_named_beside_the_first(frames_of: FramesOf, small: World) -> None:
    frames = frames_of(replace(small, trained=False, variants=(*small.variants, World().variants[2])))
    names = [variant.label for variant in frames.variants]
    seconds = {names[0]: 60.0001, names[1]: 90.0, names[2]: 60.0}
    summary = frames.summary.assign(simulated_s=frames.summary["rounds"] * frames.summary["variant"].map(seconds))

    first, *_ = (plain(text) for text in headline(replace(frames, summary=summary)))

    assert first.startswith(f"{names[2]} and {names[0]} take 1 min of simulated time per round, the least of all; ")
    assert "seed" not in first
