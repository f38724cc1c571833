"""Evaluation of the clients' models after training, from a scenario on."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score
from small_networks import dropping

from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.load import parse
from sfl_sim.studies.train import check
from sfl_sim.training.codecs import Fp16, Int

pytestmark = pytest.mark.usefixtures("without_pages")

CPU = torch.device("cpu")
SMALL = {
    "data": {"train_samples": 60, "test_samples": 40, "partition": {"kind": "label_shards", "shards": 20},
             "test": {"kind": "rho_ood", "rho": 0.5}},
    "model": {"name": "cnn_small", "cut": {"by": "random", "values": [1, 2]}},
    "train": {"rounds": 2, "batch_size": 10},
}  # fmt: skip


def last_round(**others):
    (variant,) = parse(SMALL | others).variants
    experiment = Experiment(variant.scenario, CPU)
    *earlier, last = experiment.rounds()
    assert not any(round.final for round in earlier)
    return experiment, last.final


def test_methods_with_exits_tell_what_each_client_and_the_server_answer():
    experiment, tables = last_round(method={"name": "multiexit"})
    answers = tables["answers"]
    for client, own in enumerate(experiment.setup.test_sets):
        rows = answers[answers["client"] == client]
        assert rows["sample"].tolist() == own.tolist()
        labels = experiment.dataset.y_test.numpy()[own]
        assert rows["label"].tolist() == labels.tolist()
        assert rows["seen"].tolist() == (experiment.counts[client, labels] > 0).tolist()
    assert answers["entropy"].between(0, np.log(10) + 1e-6).all()


def test_guessing_is_right_for_the_most_frequent_label():
    (variant,) = parse(SMALL | {"method": {"name": "multiexit"}}).variants
    experiment = Experiment(variant.scenario, CPU)
    assert experiment.evaluator.guessing() == experiment.dataset.y_test.bincount().max() / 40


@pytest.mark.parametrize(("serving", "told"), [({}, True), (None, False)])
def test_other_methods_tell_it_where_somebody_will_ask(serving, told):
    _, tables = last_round(method={"name": "splitfed_v1"}, serving=serving)
    assert ("answers" in tables) == told
    assert not told or np.isinf(tables["answers"]["entropy"]).all()


def test_without_test_sets_of_their_own_all_clients_answer_the_whole_test_set():
    data = SMALL["data"] | {"test": {"kind": "global"}}
    _, tables = last_round(method={"name": "multiexit"}, data=data)
    assert tables["answers"].groupby("client")["sample"].agg(list).tolist() == [list(range(40))] * 5


def test_representations_are_laid_out_if_wanted_and_no_weight_changes():
    experiment, tables = last_round(method={"name": "harmony"}, report={"representations": 30})
    shown = tables["representations"]
    assert shown["sample"].tolist() == list(range(30))
    assert shown["client"].tolist() == [sample % 5 for sample in range(30)]
    assert shown["silhouette"].between(-1, 1).all()
    without, _ = last_round(method={"name": "harmony"})
    assert experiment.weights_digest() == without.weights_digest()


def test_a_timing_only_run_asks_nothing():
    (variant,) = parse(SMALL | {"method": {"name": "harmony"}, "report": {"representations": 30}}).variants
    assert not any(round.final for round in Experiment(variant.scenario, None).rounds())


@pytest.mark.parametrize("method", [{"name": "splitgp", "ft_steps": 2, "ft_lr": 0.05}, {"name": "harmony"}])
def test_to_ask_on_the_way_leaves_no_trace_and_tells_what_would_be_if_training_ended_there(method):
    def run(rounds, **report):
        train = SMALL["train"] | {"rounds": rounds}
        clients = {"participation": 0.6}
        (variant,) = parse(SMALL | {"method": method, "train": train, "report": report, "clients": clients}).variants
        experiment = Experiment(variant.scenario, CPU)
        rows = [round.row for round in experiment.rounds()]
        return rows, experiment.weights_digest(), experiment.timeline_digest

    rows, *digests = run(3, exits_every=2)
    usual, *expected = run(3)
    assert digests == expected
    assert [("hybrid_accuracy" in row) for row in rows] == [False, True, True]
    assert [("hybrid_accuracy" in row) for row in usual] == [False, False, True]
    ended, *_ = run(2)
    for figure in ("hybrid_accuracy", "device_accuracy", "server_accuracy", "offload_probability"):
        assert rows[1][figure] == ended[-1][figure]
        assert rows[2][figure] == usual[2][figure]


def asked(exits_every, ill=(), **train):
    """A run of three rounds whose clients go on to train before they are asked; its rounds, and the weights' digest."""
    scenario = SMALL | {
        "model": {"factory": dropping, "cut": 2},
        "method": {"name": "splitgp", "ft_steps": 2, "ft_lr": 0.1},
        "train": {"rounds": 3, "batch_size": 10, **train},
        "report": {
            "exits_every": exits_every,
            "leakage": {"rounds": [2], "samples": 10, "aux_share": 0.3, "attacks": ["dependence"]},
        },
    }
    run = Experiment(parse(scenario).variants[0].scenario, CPU)
    images = run.method.data.images
    images.x = images.x.float() / 255
    for c in ill:
        images.x[run.shares[c]] = float("inf")
    return list(run.rounds()), run.weights_digest()


def test_neither_training_nor_an_attack_notices_that_somebody_has_asked():
    """Though adaptation draws random numbers, and its models are not those with which anybody goes on."""
    (usual, digest), (rounds, same) = asked(None), asked(1)
    assert digest == same
    pd.testing.assert_frame_equal(rounds[1].leakage, usual[1].leakage)


def test_updates_that_are_left_out_when_somebody_asks_do_not_count():
    usual, rounds = ([each.row["skipped"] for each in asked(every, ill=[0], on_nan="skip")[0]] for every in (None, 1))
    assert rounds == usual
    assert usual[0] > 0


@pytest.mark.parametrize("asked", [{"serving": {}}, {"report": {"representations": 20}}])
def test_what_cannot_be_asked_in_the_end_is_refused_in_the_beginning(asked):
    study = parse(SMALL | {"model": {"name": "cnn_small", "cut": 1}, "method": {"name": "splitfed_v3"}} | asked)
    with pytest.raises(ScenarioError, match=r"^method\.name: .*several models"):
        check(study)


CODED = {
    "name": "coded",
    "data": {"name": "digits", "train_samples": 40, "test_samples": 60},
    "clients": {"count": 2, "compute": 1e9, "network": {"uplink_bps": 1e6, "downlink_bps": 1e6}},
    "train": {"rounds": 1, "batch_size": 10},
}


def evaluated(method="splitfed_v2", model=None, **wire):
    """The last round's row of a run by a method with codecs, and its experiment."""
    scenario = CODED | {"method": {"name": method}, "wire": wire, "model": model or {"name": "cnn_small", "cut": 1}}
    (variant,) = parse(scenario).variants
    experiment = Experiment(variant.scenario, torch.device("cpu"))
    (last,) = experiment.rounds()
    return last.row, experiment


@pytest.mark.parametrize(
    ("method", "model"),
    [
        ("splitfed_v1", {"name": "cnn_small", "cut": {"by": "client", "values": [1, 2]}}),
        ("splitfed_v2", None),
        ("splitfed_v3", None),
        ("multihead", None),
    ],
)
def test_the_global_model_is_evaluated_through_the_codec(method, model):
    """One of two bits, so that a difference shows in the loss; and not where one says so."""
    coded, _ = evaluated(method, model, up="int2")
    plain, _ = evaluated(method, model, up="int2", at_inference=False)
    assert coded["loss"] != plain["loss"]
    exact, _ = evaluated(method, model, up={"kind": "topk", "keep": 1.0})
    none, _ = evaluated(method, model)
    assert exact["loss"] == none["loss"]


def test_of_several_cuts_the_global_model_is_evaluated_at_the_deepest():
    model = {"name": "cnn_small", "cut": {"by": "client", "values": [1, 2]}}
    row, experiment = evaluated("splitfed_v1", model, up="int2")
    pieces = experiment.method.model()
    images = experiment.method.data.images
    x = images.prepare(experiment.dataset.x_test)
    at_cut = pieces[1].weights(pieces[0].weights(x, training=False), training=False)
    decoded = experiment.method.wire.up.decode_each_alone(at_cut)
    out = pieces[2].weights(decoded, training=False)
    expected = torch.nn.functional.cross_entropy(out, experiment.dataset.y_test)
    assert row["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_a_method_that_is_not_split_has_nothing_to_code():
    coded, plain = (evaluated("fedavg", up=up)[0] for up in ("int2", "none"))
    assert coded["loss"] == plain["loss"]


@pytest.mark.parametrize("at_inference", [True, False])
def test_harmony_answers_through_the_float16_that_it_has_trained_through(at_inference):
    _, experiment = evaluated("harmony", {"name": "cnn8", "cut": 2}, at_inference=at_inference)
    deployed = experiment.method.deployed(0)
    assert deployed.feature_bytes == (2 if at_inference else 4) * math.prod(deployed.feature_shape)
    assert deployed.codec == (Fp16() if at_inference else None)
    assert experiment.evaluator.coded == ((2, Fp16()) if at_inference else None)


@pytest.mark.parametrize("method", ["splitfed_v2", "multiexit"])
def test_requests_are_served_through_the_codec(method):
    model = {"name": "cnn8", "cut": 2} if method == "multiexit" else None
    _, experiment = evaluated(method, model, up="int8")
    deployed = experiment.method.deployed(0)
    assert deployed.codec == Int()
    assert deployed.feature_bytes == math.prod(deployed.feature_shape) + 8
    _, plain = evaluated(method, model, up="int8", at_inference=False)
    assert plain.method.deployed(0).feature_bytes == 4 * math.prod(deployed.feature_shape)


def test_confidence_and_two_labels_are_scored_by_the_evaluation_that_there_is():
    data = {"name": "synthetic", "shape": [1, 8, 8], "n_labels": 2, "samples": 80, "separation": 2}
    (variant,) = parse({"data": data, "clients": {"count": 4}, "train": {"rounds": 1, "batch_size": 8}}).variants
    experiment = Experiment(variant.scenario, CPU)
    (last,) = experiment.rounds()
    evaluation = experiment.evaluator.of_model(experiment.method.model(), keeps_outputs=True)
    outputs, y = evaluation.outputs, evaluation.targets.numpy()
    assert last.row["auroc"] == pytest.approx(roc_auc_score(y, (outputs[:, 1] - outputs[:, 0]).numpy()))
    sure, answers = (found.numpy() for found in outputs.softmax(1).max(1))
    bins, wrong = np.minimum((sure * 15).astype(int), 14), 0.0
    for one in range(15):
        wrong += abs(((answers == y)[bins == one] - sure[bins == one]).sum())
    assert last.row["calibration_error"] == pytest.approx(wrong / len(y), abs=1e-6)
    assert last.row["worst_clients"] <= last.row["accuracy"]
