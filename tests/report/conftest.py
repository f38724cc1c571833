import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import FramesOf, Setting, World, write_run

from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load

BOUNDED_WAIT = "bounded_wait, max_wait_s=10"
SMALL = World(variants=World().variants[:2], clients=4, rounds=4, batches=3, seeds=(0,))


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three variants (arrival order, cyclic, cyclic with Hydra), two seeds, ten clients, thirty rounds."""
    return write_run(tmp_path_factory.mktemp("runs") / "heterogeneous_bw", World())


@pytest.fixture(scope="session")
def frames(run_folder: Path) -> Frames:
    return merge([load(run_folder)])


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Frames:
    """Two methods in four orders each, so that the last variant has the first one's colour."""
    orders = {"fcfs": "fcfs", "label_aware": "label_aware", "cyclic": "cyclic", "bounded_wait": BOUNDED_WAIT}
    variants = tuple(
        Setting(f"{method}, {name}", method, order, 0.8, 0.1)
        for method in ("splitfed_v2", "hydra")
        for order, name in orders.items()
    )
    world = replace(SMALL, variants=variants, seeds=(0, 1))
    return merge([load(write_run(tmp_path_factory.mktemp("runs") / "eight", world))])


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


@pytest.fixture
def frames_of(tmp_path: Path) -> FramesOf:
    return lambda world: merge([load(write_run(tmp_path / world.name, world))])
