"""Fixtures that several rooms' tests share."""

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from drawn import at_night
from filelock import FileLock
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)  # tests run side by side, one process per core

# No test is timed: a busy machine would turn it red. `--hypothesis-profile ci` is loaded after this one.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

UNPACK = Path(__file__).parents[2] / "shared" / "data" / "unpack"

CPU_S = Path(__file__).with_name("cpu_s.json")
"""CPU seconds of test modules. `pytest -n 0 --write-cpu-s [MODULES]` measures those that it runs."""
SLOW_S = 3.0


def pytest_addoption(parser):
    parser.addoption("--write-cpu-s", action="store_true", help=f"write CPU seconds of modules to {CPU_S.name}")


def module_of(item):
    return item.nodeid.partition("::")[0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Count the CPU seconds of a test, its fixtures and its processes that have ended."""
    before = os.times()
    try:
        return (yield)
    finally:
        spent = item.config.stash.setdefault(SPENT_S, Counter())
        spent[module_of(item)] += sum(os.times()[:4]) - sum(before[:4])


SPENT_S = pytest.StashKey[Counter]()


def pytest_sessionfinish(session):
    if session.config.getoption("write_cpu_s", default=False):
        spent = session.config.stash.get(SPENT_S, Counter())
        known = json.loads(CPU_S.read_text()) | {module: round(s, 1) for module, s in spent.items()}
        CPU_S.write_text(json.dumps({module: known[module] for module in sorted(known)}, indent=1) + "\n")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the tests of slow modules; leave out cases of dear proofs that are not drawn, unless it is night."""
    cpu_s = json.loads(CPU_S.read_text())
    for item in items:
        if cpu_s.get(module_of(item), 0) >= SLOW_S:
            item.add_marker(pytest.mark.slow)
    if not at_night(config):
        left_out = {item for item in items if item.get_closest_marker("night") and not item.get_closest_marker("drawn")}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


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
    monkeypatch.setattr("sfl_sim.report.html_page.Parts.try_", lambda parts, name, make, default: make())
    for study in ("features.serve.study", "studies.train", "features.whatif.study"):
        monkeypatch.setattr(f"sfl_sim.{study}.optional", lambda what, notify: nullcontext())


@pytest.fixture(scope="module")
def no_reports():
    """Leave out the pages of all runs of a module, those of its fixtures, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sfl_sim.report.pages.run.write_report", lambda runs, out, parts=None: out)
        yield


@pytest.fixture
def without_pages(request, monkeypatch):
    """Leave out the pages of runs, which take most of the time of a small one, but for tests marked `pages`."""
    if request.node.get_closest_marker("pages"):
        return

    def leave_out(runs, out, parts=None):
        out.write_text("left out")
        return out

    monkeypatch.setattr("sfl_sim.report.pages.run.write_report", leave_out)
