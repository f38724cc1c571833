"""docs/architecture.md says what is true of the code: its rooms, who imports whom, and the way of one operation."""

import ast
import configparser
import importlib
import re
import sys
from pathlib import Path

import networkx as nx
import torch

import sfl_sim
from sfl_sim.engine.experiment import Experiment
from sfl_sim.methods import METHODS, Method
from sfl_sim.scenario.load import parse

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sfl_sim"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOMS = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
TINY = {
    "name": "tiny",
    "data": {"name": "digits", "train_samples": 20, "test_samples": 10},
    "clients": {"count": 1, "compute": 1e9, "network": {"uplink_bps": 1e6, "downlink_bps": 1e6}},
    "method": {"name": "splitfed_v2"},
    "train": {"rounds": 1, "batch_size": 10},
}


def imported_rooms(room):
    """Return the rooms that the files of one room import."""
    rooms = set()
    for file in (PACKAGE / room).glob("**/*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sfl_sim."):
                rooms.add(node.module.split(".")[1])
    return (rooms & ROOMS) - {room}


def test_every_room_has_the_line_that_its_docstring_begins_with():
    rows = dict(re.findall(r"^\| `(\w+)/` \| (.+) \|$", PAGE, re.MULTILINE))
    assert set(rows) == ROOMS
    for room, line in rows.items():
        said = importlib.import_module(f"sfl_sim.{room}").__doc__.split("\n\n")[0]
        assert line == " ".join(said.split())


def test_the_picture_has_the_arrows_of_the_code():
    imports = nx.DiGraph((room, other) for room in ROOMS for other in imported_rooms(room))
    arrows = set(re.findall(r"^ +(\w+) --> (\w+)$", PAGE, re.MULTILINE))
    assert arrows == set(nx.transitive_reduction(imports).edges)


def test_the_import_contract_knows_every_room():
    contract = configparser.ConfigParser()
    contract.read(ROOT / ".importlinter")
    layers = re.findall(r"\w+", contract["importlinter:contract:layers"]["layers"])
    files = {file.stem for file in PACKAGE.glob("*.py")} - {"__init__"}
    assert sorted(layers) == sorted(ROOMS | files)


def stations():
    """Return the functions on the way of one operation, as the page lists them: (file, qualified name)."""
    way = PAGE.split("## The path of one operation")[1].split("\n## ")[0]
    return re.findall(r"^\d+\. `(sfl_sim/[\w/]+\.py)`, `([\w.]+)`", way, re.MULTILINE)


def test_no_method_is_more_than_four_classes_deep():
    def depth(kind):
        return 1 + max((depth(base) for base in kind.__bases__ if issubclass(base, Method)), default=0)

    assert {name: depth(kind) for name, kind in METHODS.items() if depth(kind) > 4} == {}


def test_one_operation_goes_the_way_that_the_page_says():
    """Functions are called in the order of the list."""
    wanted, seen = stations(), []
    assert len(wanted) >= 8
    installed = Path(sfl_sim.__file__).parents[1]  # not the checkout where the package was installed from it
    files = {str(installed / file): file for file, _ in wanted}

    def look(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename in files:
            seen.append((files[code.co_filename], code.co_qualname))

    (variant,) = parse(TINY).variants
    experiment = Experiment(variant.scenario, torch.device("cpu"))
    sys.setprofile(look)
    try:
        list(experiment.rounds())
    finally:
        sys.setprofile(None)
    rest = iter(seen)
    assert [station for station in wanted if station in rest] == wanted


def test_files_and_names_on_the_page_exist():
    for name in re.findall(r"`(sfl_sim/[\w/]+(?:\.py|/))`", PAGE):
        assert (ROOT / name).exists(), name
    files = [*PACKAGE.rglob("*.py")]
    words = set(re.findall(r"\w+", " ".join(file.read_text(encoding="utf-8") for file in files)))
    cited = " ".join(re.findall(r"`([^`\n]+)`", PAGE))
    cited_files = set(re.findall(r"\w+\.py\b", cited))
    assert cited_files - {file.name for file in files} == set()
    assert {file.name for file in PACKAGE.glob("[a-z]*.py")} - cited_files == set()
    assert set(re.findall(r"\b[A-Z]\w+", cited)) - words == set()
