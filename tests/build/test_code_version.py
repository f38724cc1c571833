"""Code has one version until it changes, and what it says of itself is kept as long."""

import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from sfl_sim.build.code_version import code_version, described


def test_code_has_one_version_until_a_file_changes(tmp_path, monkeypatch):
    package = tmp_path / "sfl_sim"
    (package / "report").mkdir(parents=True)
    (package / "profiles").mkdir()
    for file in ("ops.py", "report/page.py", "profiles/mine.csv"):
        (package / file).write_text("before")
    monkeypatch.setattr("sfl_sim.build.code_version.__file__", str(package / "build" / "code_version.py"))
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
    tell = "from sfl_sim.build.code_version import code_version; print(code_version())"
    versions = [
        subprocess.run([sys.executable, "-c", tell], cwd=folder, check=True, capture_output=True, text=True).stdout
        for folder in (tmp_path, checkout)
    ]
    assert versions[0] == versions[1]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def never():
    pytest.fail("described again")


def test_what_this_code_has_described_is_read_and_what_other_code_has_is_not(home, monkeypatch):
    assert described("words", lambda: {"ä": (1, None)}) == described("words", never) == {"ä": [1, None]}
    assert described("others", lambda: 2) == 2
    monkeypatch.setattr("sfl_sim.build.code_version.code_version", lambda: "other")
    assert described("words", lambda: 3) == described("words", never) == 3
    assert len([*home.rglob("*.*")]) == 3  # the folder .cache, and two files


@pytest.mark.parametrize("damage", [b"", b"[[1", b"\xff", b"7", b"[7]"])
def test_a_damaged_cache_is_written_anew(damage, home):
    described("words", lambda: 1)
    (file,) = home.rglob("*.json")
    file.write_bytes(damage)
    assert described("words", lambda: 2) == described("words", never) == 2


def test_where_nothing_can_be_kept_it_is_described_every_time(home, monkeypatch):
    (home / ".cache").write_text("a file in the way")
    assert [described("words", partial(int, n)) for n in (1, 2)] == [1, 2]


def test_a_user_without_a_home_is_no_error(monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    assert described("words", lambda: 1) == 1
