"""Our methods against their authors' own code, where a folder of clones is given, and what drives it."""

import os
import sys
from pathlib import Path

import pytest
import torch

from research.crosscheck.__main__ import AUTHORS, main
from research.crosscheck.ours import Loader, Ours, copied, distance
from research.crosscheck.theirs import module_of, within

ROUNDING = 1e-9
"""Largest difference by rounding, of which batch norm makes more in every round."""


@pytest.fixture
def checkout(request):
    """The authors' clone, in the folder that SFL_SIM_AUTHORS names."""
    if not (folder := os.environ.get("SFL_SIM_AUTHORS")):
        pytest.skip("no authors' code: SFL_SIM_AUTHORS names no folder of clones")
    for clone in sorted(Path(folder).iterdir()):
        if (clone / request.param.MARK).exists():
            return request.param, clone
    return pytest.skip(f"no clone of {request.param.REPOSITORY} in {folder}")


@pytest.mark.filterwarnings("default")  # theirs are their own affair
@pytest.mark.parametrize("checkout", AUTHORS, indirect=True, ids=lambda authors: authors.REPOSITORY)
def test_ours_is_theirs_but_for_the_oddities_that_are_known(checkout):
    authors, clone = checkout
    for found in authors.compare(clone):
        apart = max(*found.distances, *found.figures, 0.0)
        assert (apart > ROUNDING) == bool(found.oddity), found.line
        assert found.first_other is None or found.oddity, found.line
        if "averages summed" in found.title:
            assert not any(found.distances), found.line


def test_a_folder_that_is_no_clone_is_refused_in_one_line(tmp_path):
    with pytest.raises(SystemExit, match="is no checkout of a repository that is known here: jtirana98"):
        main([str(tmp_path)])


@pytest.fixture(scope="module")
def ours():
    """A run of two rounds of two local epochs."""
    return Ours(method={"name": "splitfed_v2"}, train={"rounds": 2, "local_epochs": 2})


def test_a_pass_over_a_loader_gives_the_next_epoch_unless_nothing_is_taken_of_it(ours):
    loader = Loader(ours, 3)
    iter(loader), iter(loader)
    batches = [batch for _ in range(4) for batch in loader]
    expected = [batch.load() for round in (1, 2) for batch in ours.data.batches(3, round)]
    assert len(loader) * 4 == len(batches) == len(expected)
    assert all(torch.equal(x, y) for x, y in zip(*([x for x, _ in each] for each in (batches, expected)), strict=True))


def test_parts_begin_with_our_initial_weights(ours):
    assert distance(copied(ours.part(0, 1), ours.part(1)), ours.initial) == 0
    assert distance(ours.models[0], ours.initial) > 0.01
    with pytest.raises(ValueError, match=r"only one of the two has: \['0\.0\.bias', '0\.0\.weight'\]"):
        distance(copied(ours.part(1)), ours.initial)


def test_their_modules_are_gone_afterwards_and_ours_are_back(tmp_path):
    (tmp_path / "json_of_theirs.py").write_text("import os\nopen('log', 'w').close()\nhere = os.getcwd()")
    ours, here = sys.modules["json"], os.getcwd()
    with within(tmp_path, {"json": module_of("json", is_theirs=True)}, ["--rounds", 3]):
        import json

        import json_of_theirs

        assert (json.is_theirs, sys.argv[1:]) == (True, ["--rounds", "3"])
        assert Path(json_of_theirs.here) not in (tmp_path, Path(here))
    assert sys.modules["json"] is ours
    assert "json_of_theirs" not in sys.modules
    assert os.getcwd() == here
    assert [file.name for file in tmp_path.iterdir()] == ["json_of_theirs.py"]
