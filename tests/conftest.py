"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from filelock import FileLock

torch.set_num_threads(1)  # tests run side by side, one process per core

UNPACK = Path(__file__).parents[2] / "shared" / "data" / "unpack"

SLOW = {
    "cli/test_cli", "cli/test_run", "cli/test_show", "data/test_two_processes", "docs/test_readme", "docs/test_site",
    "engine/test_evaluation", "engine/test_experiment", "runs/test_processes", "engine/test_snapshots",
    "engine/test_stopping",
    "methods/test_client_cuts", "methods/test_early_exits", "methods/test_exit_prices", "methods/test_smofi",
    "metrics/test_critical_path", "models/test_exits", "models/test_zoo", "properties/test_confined",
    "properties/test_fuzz", "properties/test_harmony_twin", "properties/test_identities",
    "properties/test_korea_twin", "properties/test_resume", "properties/test_soak", "properties/test_survivors",
    "report/test_comparison", "report/test_costs", "report/test_export", "report/test_figures",
    "report/test_headline", "report/test_hostile_names", "report/test_in_browser", "report/test_knowledge",
    "report/test_learning", "report/test_mlflow_log", "report/test_one_round", "report/test_perfetto",
    "report/test_report_page", "report/test_results", "features/serve/test_page", "report/test_system",
    "features/whatif/test_figures", "features/whatif/test_page", "scenario/test_own_code", "store/test_earlier",
    "studies/test_advise", "studies/test_landscape", "studies/test_reprice", "features/serve/test_study",
    "features/serve/test_fleet", "studies/test_train", "features/whatif/test_study", "features/whatif/test_tables",
    "system/test_availability", "system/test_cost", "tests/test_api",
    "training/test_compiling", "training/test_provenance",
}  # fmt: skip
"""Test modules that take some three seconds or more: `make quick` leaves them out."""


def pytest_collection_modifyitems(items):
    """Mark the tests of slow modules."""
    for item in items:
        if f"{item.path.parent.name}/{item.path.stem}" in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def staged_data() -> Path:
    """The folder where torchvision finds CIFAR-10 and FashionMNIST without a download.

    It is $SFL_SIM_DATA if that is set, else a cache folder which this machine's first test process fills from
    ../shared/data.
    """
    if root := os.environ.get("SFL_SIM_DATA"):
        return Path(root)
    if not UNPACK.exists():
        pytest.skip(f"no real images: SFL_SIM_DATA is not set and {UNPACK} does not exist")
    cache = Path.home() / ".cache" / "sfl-sim-tests"
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / "unpack.lock"):  # others wait; unpacking again what is there costs nothing
        subprocess.run([sys.executable, UNPACK, cache], check=True, stdout=subprocess.DEVNULL)
    return cache


@pytest.fixture(autouse=True)
def nothing_is_left_out(request, monkeypatch):
    """Let whatever a page or a study would leave out fail the test, but for tests marked `leaves_out`."""
    if request.node.get_closest_marker("leaves_out"):
        return
    monkeypatch.setattr("sfl_sim.report.html_page.Parts.make", lambda parts, name, part, otherwise: part())
    for study in ("features.serve.study", "studies.train", "features.whatif.study"):
        monkeypatch.setattr(f"sfl_sim.{study}.optional", lambda what, notify: nullcontext())


@pytest.fixture
def without_pages(request, monkeypatch):
    """Leave out the pages of runs, which take most of the time of a small one, but for tests marked `pages`."""
    if request.node.get_closest_marker("pages"):
        return

    def leave_out(runs, out, parts=None):
        out.write_text("left out")
        return out

    monkeypatch.setattr("sfl_sim.report.pages.run.write_report", leave_out)
