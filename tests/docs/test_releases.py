"""A release: its version from git, its recipe and image, and the names and columns that it has promised.

`python tests/docs/test_releases.py` writes packaging/stable.txt anew, when a release is made.
"""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import get_args

import yaml
from jinja2 import Environment

import sfl_sim
from sfl_sim.store.schema import FolderKind, tables

ROOT = Path(__file__).parents[2]
STABLE = ROOT / "packaging" / "stable.txt"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]


def promised() -> dict[str, list[str]]:
    """The public names, with their public members, and the columns of every stored table."""
    names = {"sfl_sim": sorted(sfl_sim.__all__)}
    for name in names["sfl_sim"]:
        public = getattr(sfl_sim, name)
        if isinstance(public, type) and public.__module__ == "sfl_sim.api":
            told = [
                key for kind in public.__mro__[:-1] for key in (*vars(kind), *vars(kind).get("__annotations__", {}))
            ]
            names[name] = sorted({key for key in told if not key.startswith("_")})
    columns = {
        f"{kind}/{name}": [*table.columns] for kind in get_args(FolderKind) for name, table in tables(kind).items()
    }
    return names | columns


def test_what_a_release_has_promised_is_still_there():
    """What goes on purpose leaves stable.txt, and CHANGELOG.md says so."""
    now = promised()
    released = {place: names for place, *names in map(str.split, STABLE.read_text().splitlines())}
    assert {place: gone for place, names in released.items() if (gone := {*names} - {*now.get(place, [])})} == {}


def test_the_newest_version_has_a_heading_and_is_cited():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert headings == sorted(headings, key=lambda version: [*map(int, version.split("."))], reverse=True)
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == headings[0]
    assert {"authors", "cff-version", "license", "message", "title", "type"} <= cited.keys()
    assert "version" in PROJECT["dynamic"]


def test_the_recipe_of_conda_follows_pyproject():
    def load_file_data(name, from_recipe_dir):
        return tomllib.loads((ROOT / "packaging" / "conda" / name).resolve().read_text())

    text = (ROOT / "packaging" / "conda" / "meta.yaml").read_text()
    known = {"load_file_data": load_file_data, "environ": {"GIT_DESCRIBE_TAG": "v1.2.3"}, "PYTHON": "python"}
    recipe = yaml.safe_load(Environment().from_string(text).render(known))
    assert recipe["package"] == {"name": "sfl-sim", "version": "1.2.3"}
    assert recipe["build"]["script_env"] == ["SETUPTOOLS_SCM_PRETEND_VERSION=1.2.3"]
    assert recipe["build"]["entry_points"] == [f"sfl-sim = {PROJECT['scripts']['sfl-sim']}"]
    python, *needed = recipe["requirements"]["run"]
    assert python == f"python {PROJECT['requires-python']}"
    assert {*needed} ^ {*PROJECT["dependencies"]} == {"torch>=2.11", "pytorch>=2.11"}
    assert recipe["requirements"]["host"][2:] == PYPROJECT["build-system"]["requires"]


def test_the_image_runs_the_main_job():
    steps = re.findall(r"^([A-Z]+) (.*)", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    said = dict(steps)
    assert (said["ENTRYPOINT"], said["CMD"]) == ('["sfl-sim"]', '["scenarios/heterogeneous_bw.yaml"]')
    assert (ROOT / "scenarios" / "heterogeneous_bw.yaml").exists()
    assert said["FROM"].removeprefix("python:").removesuffix("-slim") == PROJECT["requires-python"].removeprefix(">=")
    assert [name for name, _ in steps].index("COPY") < len(steps) - 3  # before sfl-sim is installed
    if hadolint := shutil.which("hadolint"):
        subprocess.run([hadolint, ROOT / "Dockerfile"], check=True)


if __name__ == "__main__":
    STABLE.write_text("".join(f"{' '.join([place, *names])}\n" for place, names in promised().items()))
