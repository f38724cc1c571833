"""Fixtures that several rooms' tests share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from filelock import FileLock

torch.set_num_threads(1)  # tests run side by side, one process per core
sys.path.append(str(Path(__file__).parents[1]))  # the package `scenarios`; last, for sfl_sim may be an installed one

UNPACK = Path(__file__).parents[2] / "shared" / "data" / "unpack"


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


@pytest.fixture
def without_pages(request, monkeypatch):
    """Leave out the pages of runs, which take most of the time of a small one, but for tests marked `pages`."""
    if request.node.get_closest_marker("pages"):
        return

    def leave_out(runs, out):
        out.write_text("left out")
        return out

    monkeypatch.setattr("sfl_sim.report.page.write_report", leave_out)
    monkeypatch.setattr("sfl_sim.report.perfetto.write_trace", lambda folder: None)
