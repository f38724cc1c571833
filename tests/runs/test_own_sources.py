"""Own code is known by its source: that of its module, and of what the module imports from its own folder."""

import sys
import sysconfig

import pytest

from sfl_sim.runs.own_sources import own_sources

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
