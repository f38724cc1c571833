"""What a command answers without torch, pandas and plotly, which take seconds to import."""

import subprocess
import sys

import pytest
from command import sfl_sim

from sfl_sim.build import catalogue
from sfl_sim.build.catalogue import check_names
from sfl_sim.build.code_version import described
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.schema import template

COMMANDS = """\
import sys
from sfl_sim.cli import main

for line in sys.argv[1:]:
    wanted, *arguments = line.split()
    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = stop.code
    assert code == int(wanted), line
    allowed = {"pandas", "plotly"} if "layers" in arguments else set()  # for its table
    heavy = {"torch", "pandas", "plotly"} & sys.modules.keys() - allowed
    assert not heavy, f"sfl-sim {line} imports {heavy}"
"""
MISTAKES = [
    "method.name=splitfed_v3x",
    "method.l3=0.1",
    "model.name=cnn_smal",
    "data.name=digit",
    "server.order=cyclyc",
    "wire.up=int9",
    "wire.update={kind: topk, keeps: 0.1}",
    "clients.compute=ai_bench",
    "clients.network.trace=hsdpa_boat",
    "servers.edge={count: 2, cost: phons}",
    "servers.edge={count: 2, backbone: mobiprf}",
    "servers.edge={count: 2, outages: {profile: flsh}}",
]


def test_no_command_waits_for_a_library_that_it_does_not_need(tmp_path, monkeypatch):
    """One process runs them all, the second one of this code: what one of them imports, it has not got from another."""
    monkeypatch.setenv("HOME", str(tmp_path))
    described("catalogue", catalogue._entries)
    sfl_sim("list", "layers", "resnet18")
    (tmp_path / "mine.yaml").write_text(template())
    scenario = ["run", "check", "whatif", "advise", "serve"]
    answers = [
        "0 --help",
        "0 run --help",
        *(f"0 list {what}" for what in ("methods", "models", "datasets", "codecs", "profiles", "scenarios")),
        "0 list schema",
        "0 list keys",
        "0 check mine.yaml --no-data",
        "2 report reports/no_such_run --open",
        *(f"2 {command} no_such_file.yaml" for command in scenario),
        *(f"2 {command} mine.yaml --set train.roundz=3" for command in scenario),
        "2 mine.yaml --set model.name=cnn_smal",
        "0 list layers resnet18",  # the last one, since its table takes pandas
    ]
    done = subprocess.run([sys.executable, "-c", COMMANDS, *answers], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_name_is_told_early_in_the_same_words(mistake):
    """In those of the place that needs the name, which is reached seconds later."""
    study = parse({"data": {"train_samples": 40}}, overrides=[mistake])
    with pytest.raises(ScenarioError) as early:
        check_names(study)
    with pytest.raises(ScenarioError) as late:
        Experiment(study.variants[0].scenario, None)
    assert str(study.located(late.value)) == str(early.value)


def test_code_of_ones_own_is_left_to_those_who_run_it():
    check_names(parse({"method": {"name": "mine:Method", "any": 1}, "server": {"order": "mine:order"}}))
