"""Equal keys mean equal trials."""

import sys
import sysconfig
from importlib import import_module, reload

import pytest
from PIL import Image
from small_study import SCENARIO

from sfl_sim.build import setup
from sfl_sim.runs.cache_key import names_own_code, own_sources, trial_key
from sfl_sim.scenario.load import parse


def key(meaning="timing", **sections):
    return trial_key(parse(SCENARIO | sections).variants[0].scenario, meaning)


@pytest.mark.parametrize(
    "sections",
    [
        {"name": "other"},
        {"repeats": 3},
        {"report": {"target_accuracy": 0.5}},
        {"data": SCENARIO["data"] | {"download": False}},
    ],
)
def test_what_no_table_of_a_trial_shows_is_no_part_of_its_key(sections):
    assert key(**sections) == key()


@pytest.mark.parametrize(
    "sections",
    [
        {"seed": 1}, {"train": SCENARIO["train"] | {"max_graphs": 1}}, {"report": {"representations": 20}},
        {"report": {"snapshots": {"rounds": [1]}}}, {"serving": {}}, {"meaning": "cpu-1-threads"},
        {"data": SCENARIO["data"] | {"test_samples": 21}},
    ],
)  # fmt: skip
def test_what_a_table_of_a_trial_shows_is_part_of_its_key(sections):
    assert key(**sections) != key()


def test_how_a_study_is_served_is_no_matter_but_whether_it_is():
    assert key(serving={}) == key(serving={"requests": 7})


def test_a_scenario_tells_whether_it_names_code_of_one_s_own():
    assert names_own_code(parse(SCENARIO | {"server": {"order": "my:order"}}).variants[0].scenario)
    assert not names_own_code(parse(SCENARIO).variants[0].scenario)


def images(folder, value):
    """Write four images of two classes; one pixel of one image has this value."""
    for number in range(4):
        image = Image.new("L", (4, 4), 100)
        image.putpixel((0, 0), value if number == 3 else 0)
        (folder / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        image.save(folder / "ab"[number % 2] / f"{number}.png")


def test_the_images_of_a_folder_are_part_of_a_key(tmp_path, monkeypatch):
    """The home of the user, too, which is not where a scenario says."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SFL_SIM_DATA", str(tmp_path / "data"))
    where = {
        "data": {"name": "image_folder", "path": "~/cats", "image_size": 4},
        "clients": SCENARIO["clients"] | {"count": 1},
    }
    keys = []
    for value in (7, 8, 7):
        images(tmp_path / "cats", value)
        setup._load.cache_clear()  # as in another process
        keys.append(key(**where))
    assert keys[0] == keys[2] != keys[1]


def test_the_text_that_a_scenario_names_is_part_of_a_key(tmp_path):
    play = tmp_path / "play.txt"
    keys = []
    for actor in ("ROMEO", "JULIET"):
        play.write_text(f"{actor}:\n" + "What light through yonder window breaks\n" * 20)
        setup._load.cache_clear()
        keys.append(key(data={"name": "shakespeare", "path": str(play)}))
    assert keys[0] != keys[1]


# Own code is known by its source: that of its module, and of what the module imports from its own folder

SOURCES = {
    "my_nets.py": "import helper\nfrom my_package import relu\nmake = helper.make",
    "helper.py": "def make(): import late",
    "late.py": "import os, nowhere",
    "my_package/__init__.py": "from .inner import relu",
    "my_package/inner.py": "import loose.deep; relu = 1",
    "loose/deep.py": "a syntax error",
}


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """A folder with modules, of which some import others, on the path of modules."""
    for name, source in {**SOURCES, "plots.py": "print('unrelated')"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    own_sources.cache_clear()
    yield tmp_path
    own_sources.cache_clear()


def test_own_code_is_a_module_with_all_that_it_imports_from_its_folder(sources):
    assert set(own_sources("my_nets")) == set(SOURCES)
    assert set(own_sources("my_package.inner")) == {"my_package/__init__.py", "my_package/inner.py", "loose/deep.py"}
    assert not set(SOURCES) & {f"{name}.py" for name in sys.modules}, "it is read, not run"


@pytest.mark.parametrize("edited", [*SOURCES, "plots.py"])
def test_it_changes_with_any_of_its_files_and_with_no_other(sources, edited):
    before = own_sources("my_nets")
    (sources / edited).write_text("RELU = 'Tanh'")
    own_sources.cache_clear()  # as in another process
    assert (own_sources("my_nets") == before) == (edited == "plots.py")


def test_a_loaded_module_is_what_it_was_until_it_is_reloaded(sources, monkeypatch):
    """What has been edited and not loaded anew is not what this process runs."""
    monkeypatch.delitem(sys.modules, "plots", raising=False)
    plots = import_module("plots")
    before = own_sources("plots")
    (sources / "plots.py").write_text("print('edited')")
    own_sources.cache_clear()
    assert own_sources("plots") == before
    reload(plots)
    own_sources.cache_clear()
    assert own_sources("plots") != before


def test_an_installed_package_is_one_digest_of_all_its_files(sources, monkeypatch):
    paths = sysconfig.get_paths() | {"purelib": str(sources)}
    monkeypatch.setattr(sysconfig, "get_paths", lambda: paths)
    before = own_sources("my_package.inner")
    assert before.keys() == {"my_package"}
    own_sources.cache_clear()
    assert own_sources("my_nets").keys() == {"my_nets"}
    (sources / "my_package" / "inner.py").write_text("relu = 2")
    own_sources.cache_clear()
    assert own_sources("my_package") != before


def test_code_without_a_source_equals_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "notebook_of_mine", type(sys)("notebook_of_mine"))
    first = own_sources("notebook_of_mine")
    own_sources.cache_clear()
    assert first != own_sources("notebook_of_mine")
    assert own_sources("nothing_of_that_name") == own_sources("c") == own_sources("") == {}
