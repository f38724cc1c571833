"""What is said of several runs on one page: what is compared, and what else differs."""

from __future__ import annotations

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


def test_one_run_per_method_compares_methods_and_cries_no_wolf() -> None:
    found = compared(
        {"name": "a", "method": {"name": "fedavg"}},
        {"name": "b", "method": {"name": "korea", "p0": 0.3, "proportion": "off"}},
        {"name": "c", "method": {"name": "splitfed_v1"}, "report": {"target_accuracy": 0.9}},
    )

    assert found.compared == "method.name"
    assert found.others == []
    assert found.settings["method.name"]["method.p0"] == ["–", "0.3", "–"]
    assert found.in_words == "The runs differ in <code>method.name</code> alone."


def test_what_differs_besides_the_method_is_warned_about() -> None:
    found = compared(
        {"method": {"name": "fedavg"}, "train": {"lr": 0.1}},
        {"method": {"name": "splitnn"}, "train": {"lr": 0.1}},
        {"method": {"name": "splitfed_v1"}, "train": {"lr": 0.2}},
    )

    assert found.compared == "method.name"
    assert found.others == ["train.lr"]
    assert "also differ in <code>train.lr</code>" in found.in_words


def test_of_two_that_differ_in_two_settings_nobody_knows_what_is_compared() -> None:
    found = compared({"server": {"speedup": 10}}, {"server": {"speedup": 100}, "train": {"lr": 0.2}})

    assert found.compared is None
    assert set(found.others) == {"server.speedup", "train.lr"}


def test_code_of_one_s_own_that_was_changed_between_two_runs_is_a_difference() -> None:
    before, after = ({"own_code": {"nets.py": "a0a0a0a0a0", "mine.py": 10 * digit}} for digit in "bc")
    found = compared({}, {}, manifests=[before, after])
    assert found.in_words == "The runs differ in <code>mine.py</code> alone."
    assert found.settings["mine.py"] == {"own_code.mine.py": ["bbbbbbbb", "cccccccc"]}
    found = compared({}, {}, manifests=[{"own_code": {}}, after])
    assert found.settings["nets.py"] == {"own_code.nets.py": ["–", "a0a0a0a0"]}


def test_equal_runs_have_the_same_settings() -> None:
    found = compared({"name": "a", "repeats": 1}, {"name": "b", "repeats": 3})

    assert found.in_words == "The runs have the same settings."


@pytest.mark.parametrize(
    ("one", "other", "compared_key"),
    [
        ({"model": {"cut": 1}}, {"model": {"cut": {"by": "random", "values": [1, 2]}}}, "model.cut"),
        (
            {"server": {"order": "fcfs"}},
            {"server": {"order": "bounded_wait", "max_wait_s": 10, "burst": 2}},
            "server.order",
        ),
        (
            {"clients": {"network": {"profile": "mobiperf"}}},
            {"clients": {"network": {"profile": None, "uplink_bps": 1e6, "downlink_bps": 1e6}}},
            "clients.network.profile",
        ),
        (
            {"data": {"partition": {"kind": "dominant_label", "p": 0.8, "phi": 1}}},
            {"data": {"partition": {"kind": "dirichlet", "alpha": 0.1}}},
            "data.partition.kind",
        ),
    ],
)
def test_a_choice_with_all_that_belongs_to_it_is_one_difference(one, other, compared_key) -> None:
    found = compared(one, other)

    assert list(found.settings) == [compared_key]
    assert len(found.settings[compared_key]) > 1


def test_what_a_run_varies_itself_is_no_difference_between_runs() -> None:
    found = compared(
        {"grid": {"method.name": ["splitfed_v2", "hydra"]}, "train": {"lr": 0.1}},
        {"method": {"name": "hydra", "cut2": 3}, "train": {"lr": 0.2}},
    )

    assert list(found.settings) == ["train.lr"]


def test_what_grids_vary_is_named_unless_all_runs_vary_it_alike() -> None:
    several, one = {"grid": {"server.order": ["fcfs", "cyclic"]}}, {"server": {"order": "random_job"}}
    apart = ", apart from what their grids vary (<code>server.order</code>)."
    assert compared(several, one).in_words == f"The runs have the same settings{apart}"
    slower = one | {"train": {"lr": 0.2}}
    assert compared(several, slower).in_words == f"The runs differ in <code>train.lr</code> alone{apart}"
    assert compared(several, several).in_words == "The runs have the same settings."


def test_a_grid_that_sets_a_key_to_one_value_is_a_setting() -> None:
    grid = {"method.name": ["splitfed_v2", "hydra"], "server.order": "fcfs"}
    found = compared({"grid": grid}, {"grid": grid | {"train.lr": 0.2}})

    assert found.settings == {"train.lr": {"train.lr": ["0.05", "0.2"]}}


def test_a_scenario_that_is_not_understood_any_more_is_compared_as_it_is() -> None:
    found = compared({"forgotten_key": 1}, {"forgotten_key": 2})

    assert found.compared == "forgotten_key"


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
    assert "The runs" not in alone
    assert "The runs differ in <code>server.speedup</code> alone." in compared
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
