"""Snapshots inside a round tell the truth, and training does not notice them."""

import numpy as np
import pandas as pd
import pytest
import torch

from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import parse

CPU = torch.device("cpu")
EVERY = 3


def experiment(device=CPU, method="splitfed_v2", rounds=2, burst=None, snapshots=None, order="cyclic", **train):
    scenario = {
        "data": {"train_samples": 200, "test_samples": 100, "partition": {"kind": "dominant_label"}},
        "train": {"rounds": rounds, "batch_size": 8, "momentum": 0.5, **train},
        "server": {"order": order, "burst": burst},
        "method": {"name": method},
        "report": {"snapshots": snapshots},
    }
    return Experiment(parse(scenario).variants[0].scenario, device)


@pytest.fixture(scope="module", params=["splitfed_v2", "hydra"])
def watched(request):
    run = experiment(method=request.param, snapshots={"rounds": [2], "every": EVERY})
    return request.param, run, list(run.rounds())


def test_training_does_not_notice(watched):
    method, run, _ = watched
    alone = experiment(method=method)
    assert all(round.confusion is None for round in alone.rounds())
    assert run.weights_digest() == alone.weights_digest()
    assert run.timeline_digest == alone.timeline_digest


def test_a_round_is_looked_into_at_its_start_and_after_every_few_jobs(watched):
    _, _, (unwatched, round) = watched
    assert unwatched.confusion is None
    jobs = round.ops[(round.ops["node"] == b"server") & (round.ops["kind"] == b"train")]
    looks = round.confusion.groupby("job")["time_s"].first()
    assert looks.index.tolist() == list(range(0, len(jobs) + 1, EVERY))
    began_s = np.sort(jobs["started_s"])
    assert looks.tolist() == [round.row["started_s"], *began_s[EVERY - 1 :: EVERY]]


def test_the_start_of_a_round_knows_what_the_last_one_ended_with(watched):
    _, _, (before, round) = watched
    start = round.confusion.query("job == 0 and true_label == predicted_label").set_index("true_label")["share"]
    ended = pd.DataFrame(before.labels).set_index("label")["accuracy"]
    assert start.to_dict() == ended.to_dict()


def test_every_row_of_a_matrix_is_a_distribution(watched):
    _, _, (_, round) = watched
    assert round.confusion.groupby(["job", "true_label"])["share"].sum().to_numpy() == pytest.approx(1)


@pytest.mark.parametrize(
    ("order", "burst", "looks"),
    [
        ("cyclic", None, [0, 1, 2, 3]),
        ("cyclic", 2, [0, 2, 4, 6]),
        ("random_client", "all", [0, 3, 6, 9]),
        ("random_client", None, [0, 3, 6, 9]),
    ],
)
def test_usually_there_is_one_look_for_every_turn_of_a_label(order, burst, looks):
    # ten clients with three mini-batches each, ten labels
    run = experiment(rounds=1, order=order, burst=burst, snapshots={"rounds": [1]})
    (round,) = run.rounds()
    assert round.confusion["job"].unique()[:4].tolist() == looks


@pytest.mark.parametrize("method", ["cse_fsl", "fsl_sage", "heron"])
def test_methods_that_go_ahead_of_the_server_can_be_asked_too(method):
    rows = [round.confusion for round in experiment(method=method, snapshots={"rounds": [2], "every": EVERY}).rounds()]
    assert rows[0] is None
    assert rows[1]["job"].nunique() > 1


def test_without_training_nothing_is_known():
    assert all(round.confusion is None for round in experiment(None, snapshots={"rounds": [1]}).rounds())


def test_what_cannot_be_looked_into_is_one_line():
    with pytest.raises(ScenarioError, match="fedavg") as refused:
        experiment(snapshots={"rounds": [2]}, method="fedavg")
    assert refused.value.key == "report.snapshots"
    assert {"splitfed_v2", "hydra"} <= set(refused.value.allowed)
    with pytest.raises(ScenarioError, match="mu_splitfed") as refused:
        experiment(snapshots={"rounds": [2]}, method="mu_splitfed")
    assert refused.value.key == "report.snapshots", "it keeps a server model for each client"
    assert "mu_splitfed" not in refused.value.allowed
    with pytest.raises(ScenarioError) as refused:
        experiment(snapshots={"rounds": [2]}, rounds=1)
    assert refused.value.key == "report.snapshots.rounds"
