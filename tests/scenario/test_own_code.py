"""Code that a scenario names runs only by permission, which no scenario can give."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

import sfl_sim
from sfl_sim.cli import main
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import load, parse
from sfl_sim.scenario.own_code import Permission, hand_over, object_name, permission, permitted, require_permission

pytestmark = pytest.mark.usefixtures("without_pages")

EVERYTHING = Permission(everything=True)
REFUSAL = "names code of your own; --allow-code lets it run"
MINE = """\
from pathlib import Path
from torch import nn
from sfl_sim.methods.fedavg import FedAvg
from sfl_sim.sim.orders import cyclic as order

Path(__file__).with_name("has run").touch()

class Method(FedAvg):
    pass

def make(input_shape, n_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, n_labels))
"""
SCENARIO = {
    "name": "theirs",
    "data": {"name": "digits", "train_samples": 40, "test_samples": 20},
    "clients": {"count": 2, "compute": 1e9, "network": {"uplink_bps": 1e6, "downlink_bps": 1e6}},
    "train": {"rounds": 1, "batch_size": 10},
    "method": {"name": "fedavg"},
}
NAMING = [
    ("model", {"factory": "planted:make"}, "model.factory"),
    ("method", {"name": "planted:Method"}, "method.name"),
    ("server", {"order": "planted:order"}, "server.order"),
    ("grid", {"method.name": ["fedavg", "planted:Method"]}, "method.name"),
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder in which the command is called, with a module that leaves word when it is imported."""
    (tmp_path / "planted.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("planted", None)


def write(scenario):
    Path("theirs.yaml").write_text(yaml.safe_dump(scenario))
    return "theirs.yaml"


def refused(*arguments):
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    return int(stop.value.code)


@pytest.mark.parametrize(("section", "says", "key"), NAMING)
def test_a_scenario_that_names_code_is_one_line_and_nothing_of_it_runs(section, says, key, place, capsys):
    assert refused("check", write(SCENARIO | {"method": {"name": "splitfed_v2"}} | {section: says})) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{key}: {REFUSAL}" in line
    assert not (place / "has run").exists()


@pytest.mark.parametrize(
    "command",
    ["run", "run --timing-only", "serve", "serve --timing-only", "advise",
     "whatif --vary server.workers=1,2", "whatif --vary model.cut=all"],
)  # fmt: skip
def test_every_command_that_would_run_it_asks(command, place, capsys):
    name, *options = command.split()
    scenario = SCENARIO | {"model": {"factory": "planted:make"}, "method": {"name": "splitfed_v2"}}
    assert refused(name, write(scenario), *options) == 2
    assert f"model.factory: {REFUSAL}" in capsys.readouterr().err.splitlines()[-1]
    assert not (place / "has run").exists()


def test_a_question_does_not_leave_out_in_silence_what_may_not_run(place, capsys):
    compared = {"method": {"name": "splitfed_v2"}, "grid": {"server.order": ["fcfs", "planted:order"]}}
    assert refused("whatif", write(SCENARIO | compared), "--vary", "model.cut=all") == 2
    assert f"server.order: {REFUSAL}" in capsys.readouterr().err


def test_a_model_on_the_command_line_is_code_too(place, capsys):
    assert refused("list", "layers", "planted:make", "--input", "1x8x8", "--labels", "10") == 2
    assert REFUSAL in capsys.readouterr().err
    main(["list", "layers", "planted:make", "--input", "1x8x8", "--labels", "10", "--allow-code"])
    assert "planted:make: 3 layers" in capsys.readouterr().out


def test_with_permission_it_runs_in_other_processes_too_and_the_permission_ends_with_the_command(place):
    both = {"method": {"name": "planted:Method"}, "model": {"factory": "planted:make"}}
    main(["run", write(SCENARIO | both), "--allow-code", "--timing-only", "-q", "--jobs", "2"])
    assert (place / "has run").exists()
    assert Path("reports/theirs/report.html").exists()
    assert not permission().everything


def test_a_stored_run_asks_for_permission_again(place, capsys):
    main(["run", write(SCENARIO | {"method": {"name": "planted:Method"}}), "--allow-code", "-q"])
    sys.modules.pop("planted")
    (place / "has run").unlink()
    faster = ["--set", "clients.network.scale=2"]
    resume = ["run", "theirs.yaml", "--resume", "--set", "train.rounds=2"]
    for command in (["reprice", "reports/theirs", *faster], ["landscape", "reports/theirs"], resume):
        assert refused(*command) == 2
        assert REFUSAL in capsys.readouterr().err
    main(["report", "reports/theirs"])  # runs nothing of it
    assert not (place / "has run").exists()
    main(["reprice", "reports/theirs", *faster, "--allow-code", "-q"])
    assert (place / "has run").exists()


def test_from_python_it_is_an_argument_and_a_function_handed_over_needs_none(place, monkeypatch):
    monkeypatch.syspath_prepend(place)
    named = SCENARIO | {"model": {"factory": "planted:make"}}
    with pytest.raises(ScenarioError, match="allow_code=True"):
        sfl_sim.run(named, out=place / "run", timing_only=True)
    assert not (place / "has run").exists()
    sfl_sim.run(named, out=place / "run", timing_only=True, allow_code=True)
    import planted

    given = SCENARIO | {"model": {"factory": planted.make}, "name": "given"}
    sfl_sim.run(given, out=place / "given", timing_only=True)
    both = given | {"method": {"name": "planted:Method"}}
    with pytest.raises(ScenarioError, match=r"method\.name: names code"):  # which nobody has handed over
        sfl_sim.run(both, out=place / "both", timing_only=True)


def test_permission_is_not_a_scenario_s_to_give(place):
    for text in ("allow_code: true", "model: {allow_code: true}", "train: {allow_code: true}"):
        Path("theirs.yaml").write_text(text)
        with pytest.raises(ScenarioError, match="unknown key"):
            load("theirs.yaml")
    assert parse(SCENARIO | {"method": {"name": "x:y", "allow_code": True}})  # an option of that method's own


def test_permission_ends_where_it_was_given_even_after_an_error():
    with permitted(EVERYTHING):
        require_permission("os:system", "key")
        with pytest.raises(ScenarioError), permitted(Permission(paths=frozenset({"mine:make"}))):
            require_permission("os:system", "key")
        require_permission("os:system", "key")
    with pytest.raises(ScenarioError):
        require_permission("os:system", "key")


def test_another_thread_has_no_part_in_it_but_in_what_was_handed_over():
    hand_over("mine:net")
    with permitted(EVERYTHING), ThreadPoolExecutor(1) as pool:
        assert permission().everything
        there = pool.submit(permission).result()
    assert not there.everything
    assert "mine:net" in there.paths


def test_what_lies_where_the_command_is_called_is_imported_by_none_of_its_processes(place):
    """Modules that shadow what Python itself imports when a process begins, and what we import late."""
    word = "import pathlib; pathlib.Path(__file__).with_name('has run').touch()\n"
    for name in ("runpy", "socket", "plotly", "sklearn"):
        (place / f"{name}.py").write_text(word)
    script = place / "bin" / "sfl-sim"  # as pip installs it: Python looks beside it, not here
    script.parent.mkdir()
    script.write_text("from sfl_sim.cli import main\nif __name__ == '__main__':\n    main()\n")
    question = ["whatif", write(SCENARIO), "--vary", "server.workers=2", "--jobs", "2", "-q"]
    root = {"PYTHONPATH": str(Path(sfl_sim.__file__).parents[1])}
    subprocess.run([sys.executable, script, *question], check=True, capture_output=True, env=os.environ | root)
    assert not (place / "has run").exists()


BROKEN = """\
from sfl_sim.methods.fedavg import FedAvg

class Mine(FedAvg):
    def round(self, round, clients):
        yield from super().round(round, clients)
        return 1 / 0
"""


def test_an_error_in_code_of_one_s_own_names_file_and_line(place, capsys):
    (place / "broken.py").write_text(BROKEN)
    assert refused(write(SCENARIO | {"method": "broken:Mine"}), "--allow-code", "-q") == 2
    assert "ZeroDivisionError: division by zero, at broken.py:6" in capsys.readouterr().err
    (place / "halting.py").write_text("import os\n\nnothing_of_that_name")
    assert refused(write(SCENARIO | {"method": "halting:Mine"}), "--allow-code", "-q") == 2
    line = "cannot be imported: name 'nothing_of_that_name' is not defined, at halting.py:3"
    assert line in capsys.readouterr().err
    for module in ("broken", "halting"):
        sys.modules.pop(module, None)


def test_an_object_of_python_is_told_by_its_name():
    assert object_name("python:Sequential-49109b1593eb") == "Sequential"
    assert object_name("python/samples-0123456789ab") == "samples"
    assert object_name("my_nets:make") == "my_nets:make"
