from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from synthetic_run import World, write_run

from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load

SMALL = World(variants=World().variants[:2], clients=4, rounds=4, batches=3, seeds=(0,))


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three variants (arrival order, cyclic, cyclic with Hydra), two seeds, ten clients, thirty rounds."""
    return write_run(tmp_path_factory.mktemp("runs") / "heterogeneous_bw", World())


@pytest.fixture(scope="session")
def frames(run_folder: Path) -> Frames:
    return merge([load(run_folder)])


@pytest.fixture
def small() -> World:
    return SMALL


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "small", SMALL)


@pytest.fixture
def folder(small_folder: Path, tmp_path: Path) -> Path:
    """A small run that a test may damage."""
    return Path(shutil.copytree(small_folder, tmp_path / "run"))
