"""The landscape around stored models: that it is theirs, that its directions are fair, and what is refused."""

import json
import re
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from command import sfl_sim
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from small_world import CPU, N_LABELS, batch_norm_net, images
from torch import nn

from sfl_sim.api import run
from sfl_sim.models.network import Network
from sfl_sim.rng import stream
from sfl_sim.runs.news import silent
from sfl_sim.scenario.own_code import hand_over
from sfl_sim.studies.landscape import Extent, Surroundings, filter_normalised, survey
from sfl_sim.training.evaluate import evaluate

pytestmark = pytest.mark.usefixtures("no_reports")

TINY = {
    "name": "tiny",
    "repeats": 2,
    "data": {"name": "digits", "train_samples": 100, "test_samples": 100, "partition": {"kind": "iid"}},
    "model": {"factory": batch_norm_net, "cut": 2},
    "clients": {"count": 5},
    "train": {"rounds": 2, "batch_size": 8, "drop_last": True},
    "grid": {"method.name": ["splitfed_v1", "splitfed_v2"]},
}
BRIEF = {"repeats": 1, "grid": {}, "train": TINY["train"] | {"rounds": 1}}
SMALL = Extent(points=3, samples=100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two variants with two seeds, of a network with batch norm."""
    return run(TINY, out=tmp_path_factory.mktemp("runs") / "tiny", threads=1).folder


@pytest.fixture
def ours(folder, tmp_path):
    """The run without its checksums, for a test that damages it."""
    return shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("SHA256SUMS"))


def surveyed(folder, out, extent=SMALL):
    survey([folder], out, extent, "cpu", silent)
    return pd.read_parquet(out.with_suffix(".parquet"))


# The slices


def test_in_the_middle_is_the_model_of_the_last_round(folder, tmp_path):
    points = surveyed(folder, tmp_path / "page.html")
    rounds = pd.read_parquet(folder / "rounds.parquet").query("round == 2").set_index(["variant", "seed"])
    middle = points.query("alpha == 0 and beta == 0").set_index(["variant", "seed"])
    assert sorted(middle["slice"].items()) == [
        (("splitfed_v1", 0), "line"), (("splitfed_v1", 0), "plane"), (("splitfed_v1", 1), "line"),
        (("splitfed_v2", 0), "line"), (("splitfed_v2", 0), "plane"), (("splitfed_v2", 1), "line"),
    ]  # fmt: skip
    assert middle["accuracy"].to_dict() == rounds["accuracy"].to_dict()
    assert middle["loss"].to_dict() == pytest.approx(rounds["loss"].to_dict(), rel=1e-6)
    assert points.groupby("slice").size().to_dict() == {"line": 4 * 3, "plane": 2 * 9}
    assert middle.loc[middle["slice"] == "line", "width"].between(0, 2, inclusive="right").all()
    assert points["width"].count() == 4


def test_messages_are_coded_as_in_training(tmp_path):
    scenario = TINY | BRIEF | {"wire": {"up": "int4"}}
    found = run(scenario, out=tmp_path / "run", threads=1)
    middle = surveyed(found.folder, tmp_path / "page.html").query("alpha == 0 and beta == 0")
    assert middle["loss"].to_list() == pytest.approx(found.rounds["loss"].to_list() * 2, rel=1e-6)


def test_a_line_through_a_linear_model_is_what_can_be_calculated_by_hand():
    model = Network("linear", linear, (1, 4, 4), N_LABELS, torch.float64).split(seed=1, device=CPU)
    weight, bias = (view.clone().numpy() for _, view in model[0].weights.named_tensors())
    first, second = (scaled(stream(5, "landscape", axis).standard_normal((N_LABELS, 16)), weight) for axis in (0, 1))
    data = images(20)
    x, y = data.x_train.double().flatten(1).numpy() / 255, data.y_train.numpy()
    surroundings = Surroundings(model, seed=5)
    for alpha, beta in Extent(points=9).plane:
        surroundings.move(alpha, beta)
        found = evaluate(model, data.x_train, data.y_train, N_LABELS, lambda x: x.double() / 255)
        scores = x @ (weight + alpha * first + beta * second).T + bias
        assert found.loss == pytest.approx((logsumexp(scores, axis=1) - scores[np.arange(20), y]).mean())


def linear(shape, n_labels):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), n_labels))


def scaled(direction, weight):
    return direction * np.linalg.norm(weight, axis=1, keepdims=True) / np.linalg.norm(direction, axis=1, keepdims=True)


@settings(max_examples=15)
@given(seed=st.integers(0, 2**31), cuts=st.sampled_from([(), (1,), (2,), (1, 2)]))
def test_a_filter_of_a_direction_is_as_long_as_the_model_s_whatever_the_cut(seed, cuts):
    net = Network("small", batch_norm_net, (1, 4, 4), N_LABELS, torch.float64)
    directions, models = (along(net.split(*cuts, seed=seed, device=CPU), seed, by) for by in (1, 0))
    for name, direction in directions.items():
        if models[name].dim() > 1:
            assert torch.allclose(direction.flatten(1).norm(dim=1), models[name].flatten(1).norm(dim=1))
        else:
            assert not direction.any()
    whole = along(net.split(seed=seed, device=CPU), seed, 1)
    assert all(torch.equal(direction, whole[name]) for name, direction in directions.items())


def along(model, seed, by):
    """The parameters by name: of the model, or of the first direction with `by=1`."""
    rng = stream(seed, "landscape", 0)
    found = {}
    for replica in model:
        flat = filter_normalised(replica.weights, rng) if by else replica.weights.flat
        found |= zip(replica.part.names, replica.part.views(flat), strict=True)
    return found


def test_a_slice_has_the_model_in_its_middle():
    assert Extent(points=5).line == [(alpha, 0) for alpha in (-1, -0.5, 0, 0.5, 1)]
    plane = Extent(points=5).plane
    assert (len(plane), plane[1], plane[4]) == (9, (-1, 0), (0, 0))


# The command


def test_the_command_leaves_a_page_and_a_table_in_the_run(ours, capsys):
    sfl_sim("landscape", ours, "--points", 3, "--samples", 40)
    printed = capsys.readouterr()
    assert printed.out.strip() == str(ours / "landscape.html")
    assert "splitfed_v2 (seed 1), line  point 28/30" in printed.err
    assert "loss on 40 test samples" in (ours / "landscape.html").read_text()
    assert pd.read_parquet(ours / "landscape.parquet")["samples"].unique() == [40]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere"], "nowhere"),
        (["{run}", "elsewhere"], "--out: several runs need a path"),
        (["{run}", "--points", "4"], "--points: "),
        (["{run}", "--points", "999999999"], "Invalid value for '--points': "),
        (["{run}", "--device", "abacus"], "--device: "),
    ],
)
def test_what_cannot_be_drawn_is_one_line(arguments, line, folder, capsys):
    sfl_sim("landscape", *(word.format(run=folder) for word in arguments), code=2)
    printed = capsys.readouterr().err
    assert line in printed
    assert len(printed.splitlines()) == 1
    assert not (folder / "landscape.html").exists()


def test_a_run_that_trained_nothing_has_no_landscape(tmp_path, capsys):
    timing = run(TINY | BRIEF, out=tmp_path / "run", timing_only=True).folder
    sfl_sim("landscape", timing, code=2)
    assert "no checkpoint of splitfed_v2" in capsys.readouterr().err


def test_of_a_model_with_alternatives_there_is_no_landscape(tmp_path, capsys):
    scenario = TINY | BRIEF | {"method": {"name": "splitfed_v3"}}
    sfl_sim("landscape", run(scenario, out=tmp_path / "run", threads=1).folder, code=2)
    assert "method.name: " in capsys.readouterr().err


def test_the_checkpoint_of_another_model_is_refused(ours, capsys):
    text = (ours / "scenario.yaml").read_text()
    hand_over("sfl_sim.testing:mlp")
    (ours / "scenario.yaml").write_text(text.replace("sfl_sim.testing:batch_norm_net", "sfl_sim.testing:mlp"))
    sfl_sim("landscape", ours, code=2)
    assert "is not of the model that the run's scenario describes" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named(ours, capsys):
    for path in (ours / "checkpoints").glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:20])
    sfl_sim("landscape", ours, code=2)
    assert re.search(r"^sfl-sim: run: is damaged: .* \(found '.*\.safetensors'\)$", capsys.readouterr().err)


def test_ctrl_c_leaves_nothing(folder, tmp_path):
    def interrupt(news):
        if news.done == news.total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        survey([folder], tmp_path / "page.html", SMALL, "cpu", interrupt)
    assert not list(tmp_path.iterdir())


def test_a_seed_without_a_model_is_left_out_and_the_next_one_s_plane_is_drawn(ours, tmp_path):
    for path in (ours / "checkpoints").glob("*.json"):
        if json.loads(path.read_text()).items() >= {"variant": "splitfed_v1", "seed": 0}.items():
            path.unlink()
    seeds = surveyed(ours, tmp_path / "page.html").groupby(["variant", "slice"])["seed"].unique().map(list)
    assert seeds.to_dict() == {
        ("splitfed_v1", "line"): [1],
        ("splitfed_v1", "plane"): [1],
        ("splitfed_v2", "line"): [0, 1],
        ("splitfed_v2", "plane"): [0],
    }
