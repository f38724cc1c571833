"""The pictures of the README and the gallery are of the pages that the code makes now."""

import json
import re

import pytest
from gallery import make


@pytest.mark.night
def test_no_picture_is_older_than_the_code_of_its_page():
    assert make.stale() == [], "make gallery"


def test_a_picture_is_stale_when_its_scenario_changes_or_it_was_never_made(tmp_path, monkeypatch):
    monkeypatch.setattr(make, "MADE", tmp_path / "made.json")
    assert make.stale() == [*make.PICTURES]
    make.MADE.write_text(json.dumps({name: make.digest(picture) for name, picture in make.PICTURES.items()}))
    assert make.stale() == []
    other = tmp_path / "other.yaml"
    other.write_text("name: other")
    files = make.scenario_file
    monkeypatch.setattr(make, "scenario_file", lambda name: other if name == "unreliable_fleet" else files(name))
    assert make.stale() == ["fleet"]


def test_every_picture_of_the_gallery_and_the_readme_is_one_that_is_made():
    pages = [make.HERE.parents[1] / "README.md", *make.HERE.glob("*.md")]
    shown = {name for page in pages for name in re.findall(r"[(/](\w+)\.png", page.read_text(encoding="utf-8"))}
    assert shown == {*make.PICTURES}
