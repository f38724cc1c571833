"""Parts are exported to the runtimes that devices use, and run there as torch runs them, or are left out by name."""

import io
from importlib.metadata import requires, version
from importlib.util import find_spec

import command
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from sfl_sim.build.setup import Setup
from sfl_sim.errors import ScenarioError
from sfl_sim.features.devices import measure as measuring
from sfl_sim.features.devices import runtimes
from sfl_sim.features.devices.fit import calibrate_devices
from sfl_sim.features.devices.measure import measure
from sfl_sim.features.devices.runtimes import NAMES, RUNTIMES, CannotRun, Runtime, exported, loaded
from sfl_sim.scenario.load import parse

SMALL = {
    "data": {"name": "digits", "train_samples": 50},
    "model": {"name": "cnn_small", "cut": 1},
    "clients": {"count": 2},
}


def _traced(module, x, file):
    torch.jit.save(torch.jit.trace(module, x), str(file))


def _runs(file, x, threads):
    module = torch.jit.load(str(file))
    return lambda: module(x).numpy()


@pytest.fixture
def play(monkeypatch):
    """Give a runtime that is torch's own interpreter, to be spoilt."""

    def put(**other):
        runtime = Runtime({"torch": "torch"}, _traced, _runs)._replace(**other)
        monkeypatch.setitem(RUNTIMES, "play", runtime)
        monkeypatch.setattr(runtimes, "NAMES", [*runtimes.NAMES, "play"])

    monkeypatch.setattr(measuring, "MAX_RUNS", measuring.MIN_RUNS)
    return put


def table_of(scenario, told, **more):
    out = io.StringIO()
    study = parse(scenario).variants[0].scenario
    measure(study, out, machine="mine", device=torch.device("cpu"), notify=told.append, **more)
    out.seek(0)
    return pd.read_csv(out)


def parts_of(scenario):
    setup = Setup(parse(scenario).variants[0].scenario, pixels=False)
    network = setup.method(torch.device("cpu")).task.network
    x = torch.rand(2, *network.input_shape)
    part1, part2 = network.split(1, seed=0, device=torch.device("cpu"))
    return [(part1, x), (part2, part1.weights(x, training=False))]


@pytest.mark.parametrize("name", sorted(RUNTIMES))
def test_a_runtime_gives_what_torch_gives(name, tmp_path):
    if not all(map(find_spec, RUNTIMES[name].modules)):
        pytest.skip(f"{name} is not installed")
    for number, (replica, x) in enumerate(parts_of(SMALL)):
        samples = x[: RUNTIMES[name].samples or 2]
        file = tmp_path / f"{number}.pt"
        exported(name, replica, samples, file, 1)
        run = loaded(name, samples, file, 1)
        for _ in range(2):
            expected = replica.weights(samples, training=False).detach().numpy()
            np.testing.assert_allclose(run().reshape(expected.shape), expected, atol=1e-4 * abs(expected).max())


def test_forward_passes_of_the_whole_and_of_parts_are_rows_with_the_runtimes_name(play):
    play()
    rows = table_of(SMALL, [], cuts=["conv2"], batches=(1, 3), runtime="play")
    assert rows["part"].value_counts().to_dict() == {"whole": 2, "part-1": 2, "part-2": 2}
    assert (rows["forward_ms"] > 0).all()
    assert rows["step_ms"].isna().all()
    assert set(rows["runtime"]) == {"play"}
    assert set(rows["version"]) == {version("torch")}


def test_what_a_runtime_computes_otherwise_is_left_out_by_the_layers_name(play):
    def wrong(file, x, threads):
        run = _runs(file, x, threads)
        return lambda: run() + (0.01 if run().shape[1] == 10 else 0)

    told = []
    play(load=wrong)
    rows = table_of(SMALL, told, cuts=["conv3"], batches=(2,), runtime="play")
    assert rows["part"].to_list() == ["part-1"]
    assert [line.split(", ")[0] for line in told if "left out" in line] == [
        "whole_2 is left out: layer fc: its output differs from torch's by 0.01",
        "part-2_3_2 is left out: layer fc: its output differs from torch's by 0.01",
    ]


def test_a_layer_that_a_runtime_lacks_is_named(play, tmp_path):
    class Turned(nn.Module):
        def forward(self, x):
            return torch.linalg.matrix_exp(x[..., :8, :8])

    def picky(module, x, file):
        if any(isinstance(inner, Turned) for inner in module.modules()):
            raise RuntimeError("no kernel")
        _traced(module, x, file)

    play(export=picky)
    network = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1), Turned(), nn.Flatten(), nn.Linear(64, 10))
    (part1, x), (part2, z) = parts_of(SMALL | {"model": {"factory": network, "cut": 1}})
    exported("play", part1, x, tmp_path / "1.pt", 1)
    with pytest.raises(CannotRun, match=r"^layer 1: RuntimeError: no kernel$"):
        exported("play", part2, z, tmp_path / "2.pt", 1)


def test_a_mini_batch_that_a_runtime_does_not_take_is_left_out_and_told_once(play):
    told = []
    play(samples=1)
    rows = table_of(SMALL, told, cuts=[], batches=(1, 2), runtime="play")
    assert rows["batch"].to_list() == [1]
    assert [line for line in told if "left out" in line] == ["whole_2 is left out: play takes 1 sample in a call"]


def test_a_runtime_that_is_not_there_is_one_line(play):
    with pytest.raises(ScenarioError) as error:
        table_of(SMALL, [], runtime="onnxrun")
    assert (error.value.key, error.value.found, error.value.allowed[1]) == ("--runtime", "onnxrun", "onnxruntime")
    play(modules={"nowhere_at_all": "nowhere"})
    with pytest.raises(ScenarioError) as error:
        table_of(SMALL, [], runtime="play")
    assert (error.value.found, error.value.allowed) == ("play", "pip install nowhere")


def test_the_commands_help_and_the_extras_name_every_runtime(capsys):
    command.sfl_sim("devices", "measure", "--help")
    told = capsys.readouterr().out
    assert [name for name in NAMES if name not in told] == []
    extras = {requirement.partition(";")[2]: requirement for requirement in requires("sfl-sim")}
    assert [name for name in RUNTIMES if not any(f"'{name}'" in extra.replace('"', "'") for extra in extras)] == []


def test_rows_of_several_runtimes_are_not_fitted_together(tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("device,runtime,macs,forward_ms\nmine,torch,1e6,2\nmine,ncnn,1e6,1\n")
    with pytest.raises(ScenarioError) as error:
        calibrate_devices(table, "macs")
    assert (error.value.line, error.value.found, error.value.allowed) == (3, "ncnn", "torch")
