"""What is said of several runs on one page: what is compared, and what else differs."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from read_table import read

from sfl_sim.errors import ScenarioError
from sfl_sim.report.comparison import Comparison, compare, difference_tables
from sfl_sim.report.frames import merge
from sfl_sim.report.load import Run, load
from sfl_sim.report.pages.run import write_report
from sfl_sim.scenario.load import parse

BASE = {"data": {"name": "digits"}, "train": {"lr": 0.05}}


def stored(number: int, scenario: dict[str, Any], manifest: dict[str, Any]) -> Run:
    """A run as far as it is compared: its scenario, the names of its variants, and its manifest."""
    scenario = {"name": "run"} | {key: below(BASE.get(key), value) for key, value in (BASE | scenario).items()}
    try:
        variants = [variant.name for variant in parse(scenario).variants]
    except ScenarioError:
        variants = ["variant"]
    nothing = pd.DataFrame()
    tables = {"summary", "rounds", "labels", "confusion", "clients", "layers", "representations"}
    frames = dict.fromkeys(tables, nothing) | {"summary": pd.DataFrame({"variant": variants})}
    return Run(**frames, folder=Path(f"run{number}"), scenario=scenario, scenario_text="", manifest=manifest)


def below(section: Any, change: Any) -> Any:
    """A section with the keys of the change besides its own."""
    return section | change if isinstance(section, dict) and isinstance(change, dict) else change


def compared(*scenarios: dict[str, Any], manifests: Sequence[dict[str, Any]] = ()) -> Comparison:
    """Compare runs with these changes of one scenario."""
    told = zip_longest(scenarios, manifests, fillvalue={})
    return compare([stored(number, scenario, manifest) for number, (scenario, manifest) in enumerate(told)])


SEVERAL = {"grid": {"server.order": ["fcfs", "cyclic"]}}
METHODS = {"method.name": ["splitfed_v2", "hydra"], "server.order": "fcfs"}
DIRICHLET = {"kind": "dirichlet", "alpha": 0.1}


@pytest.mark.parametrize(
    ("scenarios", "main", "others", "grids"),
    [
        # One run for each method: the method is compared, with its options; what is only reported does not matter.
        ([{"name": "a", "method": {"name": "fedavg"}},
          {"name": "b", "method": {"name": "korea", "p0": 0.3, "proportion": "off"}},
          {"name": "c", "method": {"name": "splitfed_v1"}, "report": {"target_accuracy": 0.9}}], "method.name", [], []),
        # What differs in some of them besides is told.
        ([{"method": {"name": "fedavg"}, "train": {"lr": 0.1}}, {"method": {"name": "splitnn"}, "train": {"lr": 0.1}},
          {"method": {"name": "splitfed_v1"}, "train": {"lr": 0.2}}], "method.name", ["train.lr"], []),
        # Of two that differ in two settings, nobody knows what is compared.
        ([{"server": {"speedup": 10}}, {"server": {"speedup": 100}, "train": {"lr": 0.2}}], None,
         ["server.speedup", "train.lr"], []),
        ([{"name": "a", "repeats": 1}, {"name": "b", "repeats": 3}], None, [], []),
        # A choice is one difference with all that belongs to it.
        ([{"model": {"cut": 1}}, {"model": {"cut": {"by": "random", "values": [1, 2]}}}], "model.cut", [], []),
        ([{"server": {"order": "fcfs"}}, {"server": {"order": "bounded_wait", "max_wait_s": 10, "burst": 2}}],
         "server.order", [], []),
        ([{"clients": {"network": {"profile": "mobiperf"}}},
          {"clients": {"network": {"profile": None, "uplink_bps": 1e6, "downlink_bps": 1e6}}}],
         "clients.network.profile", [], []),
        ([{"data": {"partition": {"kind": "dominant_label", "p": 0.8, "phi": 1}}}, {"data": {"partition": DIRICHLET}}],
         "data.partition.kind", [], []),
        # What a run varies itself is no difference between runs, but named unless all runs vary it alike.
        ([{"grid": {"method.name": ["splitfed_v2", "hydra"]}, "train": {"lr": 0.1}},
          {"method": {"name": "hydra", "cut2": 3}, "train": {"lr": 0.2}}], "train.lr", [], ["method.name"]),
        ([SEVERAL, {"server": {"order": "random_job"}}], None, [], ["server.order"]),
        ([SEVERAL, {"server": {"order": "random_job"}, "train": {"lr": 0.2}}], "train.lr", [], ["server.order"]),
        ([SEVERAL, SEVERAL], None, [], []),
        ([{"grid": METHODS}, {"grid": METHODS | {"train.lr": 0.2}}], "train.lr", [], []),
        # A scenario that is not understood any more is compared as it is.
        ([{"forgotten_key": 1}, {"forgotten_key": 2}], "forgotten_key", [], []),
    ],
)  # fmt: skip
def test_it_is_told_what_is_compared_and_what_differs_besides(
    scenarios: list[dict[str, Any]], main: str | None, others: list[str], grids: list[str]
) -> None:
    found = compared(*scenarios)
    assert (found.compared, sorted(found.others), list(found.grids)) == (main, others, grids)
    for key in [*others, *grids, *([main] if main else [])]:
        assert f"<code>{key}</code>" in found.in_words


def test_the_values_of_all_that_belongs_to_a_difference_are_kept() -> None:
    methods = compared({"method": {"name": "fedavg"}}, {"method": {"name": "korea", "p0": 0.3}})
    assert methods.settings["method.name"]["method.p0"] == ["–", "0.3"]
    assert compared({}, {"train": {"lr": 0.2}}).settings == {"train.lr": {"train.lr": ["0.05", "0.2"]}}


def test_code_of_one_s_own_that_was_changed_between_two_runs_is_a_difference() -> None:
    before, after = ({"own_code": {"nets.py": "a0a0a0a0a0", "mine.py": 10 * digit}} for digit in "bc")
    found = compared({}, {}, manifests=[before, after])
    assert found.compared == "mine.py"
    assert found.settings["mine.py"] == {"own_code.mine.py": ["bbbbbbbb", "cccccccc"]}
    found = compared({}, {}, manifests=[{"own_code": {}}, after])
    assert found.settings["nets.py"] == {"own_code.nets.py": ["–", "a0a0a0a0"]}


def test_machines_are_told_apart_from_settings() -> None:
    old = {"device": "cpu", "versions": {"torch": "2.6.0"}, "created": "2026-01-01"}
    new = {"device": "cuda", "versions": {"torch": "2.15.0"}, "created": "2026-11-21"}
    found = compared({}, {"train": {"max_graphs": 4}}, manifests=(old, new))

    assert not found.settings
    assert found.machine == {
        "device": ["cpu", "cuda"],
        "versions.torch": ["2.6.0", "2.15.0"],
        "train.max_graphs": ["null", "4"],
    }
    assert "<code>device</code>" in found.machine_in_words


def test_the_page_warns_only_where_there_is_something_to_warn_about(
    small_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sfl_sim.report.pages.run.SECTIONS", {})

    def page(*changes: dict[str, str]) -> str:
        folders = [small_folder]
        for number, change in enumerate(changes):
            folder = Path(shutil.copytree(small_folder, tmp_path / str(number), dirs_exist_ok=True))
            text = (folder / "scenario.yaml").read_text(encoding="utf-8")
            for old, new in change.items():
                assert old in text
                text = text.replace(old, new)
            (folder / "scenario.yaml").write_text(text, encoding="utf-8")
            folders.append(folder)
        return write_report(folders, tmp_path / "report.html").read_text(encoding="utf-8")

    warned = '<p class="warning">'
    slower, later = {"speedup: 100": "speedup: 10"}, {"speedup: 100": "speedup: 10", "seed: 0": "seed: 7"}
    alone, compared, mixed = page(), page(slower), page(later)
    assert "<code>server.speedup</code>" not in alone
    assert "<code>server.speedup</code> alone" in compared
    assert warned not in alone + compared
    assert warned in mixed


def test_the_differences_of_two_runs_are_taken_seed_by_seed(run_folder: Path) -> None:
    run = load(run_folder)
    more = run.summary["seed"].map({0: 0.01, 1: 0.03})
    summary = run.summary.assign(accuracy=run.summary["accuracy"] + more, simulated_s=1.0)
    other = replace(run, folder=Path("other"), summary=summary)

    (table,) = difference_tables(merge([run, other]))

    assert table.title == f"Differences: other − {run.folder}"
    row = read(table)["hydra, cyclic"]
    assert row["Accuracy (points)"] == ("+2.0", "± 1.4")
    assert row["Simulated time"][0].startswith("−")
    assert set(read(table)) == set(run.summary["variant"])
    assert difference_tables(merge([run])) == []
