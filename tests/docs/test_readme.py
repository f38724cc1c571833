"""What the README shows works as it stands there."""

import re
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

import sfl_sim
from sfl_sim.cli import main
from sfl_sim.scenario.files import scenario_file, scenario_names
from sfl_sim.scenario.load import load, parse
from sfl_sim.scenario.vary import read_axes, spread

pytestmark = pytest.mark.usefixtures("without_pages")

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def block(language, containing):
    blocks = re.findall(rf"```{language}[^\n]*\n(.*?)```", README, re.DOTALL)
    return next(text for text in blocks if containing in text)


def test_the_readme_stays_short():
    assert len(README.splitlines()) <= 150


def test_the_scenario_explained_line_by_line_is_the_shipped_one():
    shown = parse(yaml.safe_load(block("yaml", "name: heterogeneous_bw")))
    shipped = load(ROOT / "scenarios" / "heterogeneous_bw.yaml")
    assert shown.base == shipped.base


def test_the_method_of_the_readme_runs(tmp_path, monkeypatch):
    code = block("python", "class Stubborn")
    assert len(code.splitlines()) <= 35
    (tmp_path / "my_methods.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    scenario = {
        "data": {"train_samples": 200, "test_samples": 100, "partition": {"kind": "dominant_label"}},
        "method": {"name": "my_methods:Stubborn"},
        "train": {"rounds": 3, "batch_size": 8},
    }
    results = sfl_sim.run(scenario, out=tmp_path / "mine", allow_code=True)
    command = re.search(r"sfl-sim heterogeneous_bw --allow-code --set '(grid=.*Stubborn.*)'", README)[1]
    compare = ["heterogeneous_bw", "--allow-code", "--set", command]
    main([*compare, "--set", "repeats=1", "--timing-only", "-q", "--out", "compared"])
    assert results.summary["variant"].tolist() == ["my_methods:Stubborn"]
    model_down = results.ops.query("node == 'downlink' and kind == 'model'")
    assert model_down["round"].unique().tolist() == [1]  # part-1 comes once and stays
    assert results.rounds["accuracy"].iloc[-1] > 0.1
    sys.modules.pop("my_methods")


def test_the_python_interface_gives_frames(tmp_path):
    results = sfl_sim.run(
        "heterogeneous_bw", overrides=["train.rounds=1", "repeats=1"], timing_only=True, out=tmp_path / "run"
    )
    assert len(results.rounds) == 3
    assert len(results.clients) == 30
    assert len(results.labels) == 0
    assert isinstance(results.ops, pd.DataFrame)
    with pytest.raises(sfl_sim.ScenarioError, match="did you mean"):
        sfl_sim.run("heterogeneous_bw", overrides=["server.order=cyclik"])


SHIPPED = sorted((ROOT / "scenarios").rglob("*.yaml"))
ONE_VARIANT = {"lora/pretrain", "deployment/edgeflowertune_fedavg", "deployment/edgeflowertune_split"}
"""A model with which others begin, and systems that were measured."""


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_scenario_loads_and_is_found_by_its_name(path):
    study = load(path)
    name = path.relative_to(ROOT / "scenarios").with_suffix("").as_posix()
    assert study.name == name.replace("/", "_")
    question = re.search(r"sfl-sim whatif (\S+) (--vary.*)", path.read_text())
    if question:
        assert question[1] == name
        axes = read_axes(re.findall(r"--vary (\S+)", question[2]))
        assert sum(1 for _ in spread(study, [axis for axis in axes if not axis.is_open])) > len(study.variants)
    elif name not in ONE_VARIANT:
        assert len({variant.name for variant in study.variants}) > 1
    assert scenario_file(name).read_bytes() == path.read_bytes()  # in a wheel it is a copy


def test_the_first_line_of_a_shipped_scenario_says_what_it_is():
    about = scenario_names()
    assert len(about) == len(SHIPPED)
    assert all(line.endswith((".", "?")) for line in about.values())


def test_a_folder_of_that_name_does_not_hide_a_shipped_scenario(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cuts" / "resnet18").mkdir(parents=True)
    assert scenario_file("cuts/resnet18").is_file()
    assert scenario_file("cuts") == Path("cuts")  # nothing shipped is called that: reading it says what it is
