"""Equal keys mean equal trials; there is no key if equality cannot be known."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_study import SCENARIO

from sfl_sim.engine.cache_key import code_version, names_own_code, trial_key
from sfl_sim.scenario.load import parse


def key(meaning="timing", **sections):
    return trial_key(parse(SCENARIO | sections).variants[0].scenario, meaning)


@pytest.mark.parametrize(
    "sections",
    [
        {"name": "other"}, {"repeats": 3}, {"report": {"target_accuracy": 0.5}},
        {"data": SCENARIO["data"] | {"download": False}},
    ],
)  # fmt: skip
def test_what_no_table_of_a_trial_shows_is_no_part_of_its_key(sections):
    assert key(**sections) == key()


@pytest.mark.parametrize(
    "sections",
    [
        {"seed": 1}, {"train": SCENARIO["train"] | {"max_graphs": 1}}, {"report": {"representations": 20}},
        {"report": {"snapshots": {"rounds": [1]}}}, {"serving": {}}, {"meaning": "cpu-1-threads"},
        {"data": SCENARIO["data"] | {"root": "there"}},
    ],
)  # fmt: skip
def test_what_a_table_of_a_trial_shows_is_part_of_its_key(sections):
    assert key(**sections) != key()


def test_how_a_study_is_served_is_no_matter_but_whether_it_is():
    assert key(serving={}) == key(serving={"requests": 7})


def test_a_user_s_own_code_and_folders_have_no_key(tmp_path):
    (tmp_path / "cat").mkdir()
    assert key(data={"name": "image_folder", "path": str(tmp_path)}) is None
    assert key(data={"name": "femnist"}) is None
    assert key(method={"name": "my_methods:Mine"}) is None
    assert key(model={"factory": "my_nets:make"}) is None
    assert names_own_code(parse(SCENARIO | {"server": {"order": "my:order"}}).variants[0].scenario)
    assert not names_own_code(parse(SCENARIO).variants[0].scenario)


def test_what_lies_at_home_counts_as_anything_else_does(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "cat").mkdir()
    assert key(data={"name": "image_folder", "path": "~/cat"}) is None
    play = tmp_path / "play.txt"
    play.write_text("ROMEO:")
    before = key(data={"name": "shakespeare", "path": "~/play.txt"})
    play.write_text("JULIET:")
    assert before != key(data={"name": "shakespeare", "path": "~/play.txt"}) is not None


def test_code_has_one_version_until_a_file_changes(tmp_path, monkeypatch):
    package = tmp_path / "sfl_sim"
    (package / "report").mkdir(parents=True)
    (package / "profiles").mkdir()
    for file in ("ops.py", "report/page.py", "profiles/mine.csv"):
        (package / file).write_text("before")
    monkeypatch.setattr("sfl_sim.engine.cache_key.__file__", str(package / "engine" / "cache_key.py"))
    compute = code_version.__wrapped__
    before = compute()
    (package / "report" / "page.py").write_text("pages show what there is")
    assert compute() == before
    for file in ("ops.py", "profiles/mine.csv"):
        (package / file).write_text("after")
        after = compute()
        assert after != before
        before = after


def test_an_installed_package_is_the_same_code_as_its_checkout(tmp_path):
    """A node of a cluster may import the one, and the machine where a study was begun the other."""
    checkout = Path(__file__).parents[2]
    installed = shutil.copytree(
        checkout / "sfl_sim", tmp_path / "sfl_sim", ignore=shutil.ignore_patterns("__pycache__")
    )
    for folder in ("profiles", "scenarios"):
        shutil.copytree(checkout / folder, installed / folder, dirs_exist_ok=True)
    tell = "from sfl_sim.engine.cache_key import code_version; print(code_version())"
    told = [
        subprocess.run([sys.executable, "-c", tell], cwd=place, check=True, capture_output=True, text=True).stdout
        for place in (tmp_path, checkout)
    ]
    assert told[0] == told[1]
