"""The privacy meter: it attacks what crosses the cut, and training does not notice."""

import json

import numpy as np
import pytest
import torch
from small_networks import dropping
from torch import nn

from sfl_sim.data.dataset import Dataset
from sfl_sim.engine.checkpointing import StoredRound
from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.leakage import chosen_samples
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.methods.splitfed_v1 import SplitFedV1
from sfl_sim.models.replica import through
from sfl_sim.ops import SERVER, on, send
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.optional_sections import Leakage
from sfl_sim.testing import cases_of

CPU = torch.device("cpu")
ATTACKS_OF_LABELS = {"norm", "clusters", "nearest", "commonest label"}
SPLIT = [name for name, kind in METHODS.items() if kind.is_split]


def experiment(method="splitfed_v2", device=CPU, cut=1, leakage=None, rounds=1, **sections):
    kind = METHODS[method]
    options = next(case.options for case in cases_of(kind) if kind.has("is_split", case.options) or not kind.is_split)
    scenario = {
        "data": {"train_samples": 96, "test_samples": 40, "partition": {"kind": "iid"}},
        "clients": {"count": 4},
        "model": {"cut": cut},
        "train": {"rounds": rounds, "batch_size": 8, "momentum": 0.5},
        "method": {"name": method, **options.model_dump(exclude_unset=True)},
        "report": {"leakage": leakage},
        **sections,
    }
    return Experiment(parse(scenario).variants[0].scenario, device)


def figures(run):
    """The means over all clients after the last round, by cut, attack and metric."""
    *_, last = run.rounds()
    rows = last.leakage[last.leakage["client"] == -1]
    return rows.set_index(["cut", "attack", "metric"])["value"].to_dict()


def few(**more):
    return {"samples": 30, "aux_share": 0.3, "epochs": 2, **more}


@pytest.mark.parametrize("model", [{"cut": 1}, {"factory": dropping, "cut": 1}])
def test_training_does_not_notice(model):
    digests = []
    for leakage in (few(rounds=[1]), None):
        run = experiment(rounds=2, leakage=leakage, model=model)
        assert [round.leakage is None for round in run.rounds()] == [leakage is None] * 2
        digests.append((run.weights_digest(), run.timeline_digest))
    assert digests[0] == digests[1]


@pytest.mark.parametrize("method", SPLIT)
def test_every_split_method_can_be_attacked(method):
    run = experiment(method, leakage=few())
    found = figures(run)
    attacks = {attack for cut, attack, _ in found if cut == 1}
    of_labels = ATTACKS_OF_LABELS if run.method.gets_gradients and run.method.gradients_by_row else set()
    assert attacks == {"inversion", "dependence", *of_labels}
    assert all(np.isfinite(list(found.values())))


def test_what_is_found_by_chance_stands_beside_every_figure():
    *_, last = experiment(leakage=few(epochs=20)).rounds()
    assert last.leakage["chance"].notna().all()
    rows = last.leakage[last.leakage["client"] == -1].set_index(["cut", "attack", "metric"])
    value, chance = rows["value"], rows["chance"]
    assert chance[1, "inversion", "ssim"] < 0.5 * value[1, "inversion", "ssim"]
    assert chance[0, "mean", "ssim"] == pytest.approx(value[0, "mean", "ssim"])
    assert abs(chance[1, "dependence", "dcor2_unbiased"]) < 0.1 < chance[1, "dependence", "dcor"]
    assert chance[1, "norm", "auc"] > 0.5
    assert chance[1, "commonest label", "accuracy"] < chance[1, "clusters", "accuracy"] < 0.5


class OneWay(SplitFedV1):
    """A method whose clients train by themselves; the server tells them nothing."""

    sends_gradients = False

    def minibatch(self, c, part1, part2, batch, round, visit=0):
        smashed = yield on(c, self.forward, part1, batch)
        yield send(smashed, c, SERVER)


def test_no_label_is_read_where_clients_train_without_gradients_of_the_server(monkeypatch):
    monkeypatch.setitem(METHODS, "one way", OneWay)
    found = figures(experiment("one way", leakage=few()))
    assert {attack for cut, attack, _ in found if cut == 1} == {"inversion", "dependence"}


@pytest.mark.parametrize(("cut", "attacks"), [(2, set()), (3, ATTACKS_OF_LABELS)])
def test_no_label_is_read_from_gradients_that_never_come_down(cut, attacks):
    """All below the adapters, which begin with the third layer, is frozen: nobody there needs a gradient."""
    run = experiment("splitfed_v1", cut=cut, leakage=few(attacks=["labels"]), lora={"targets": ["conv3"]})
    assert {attack for _, attack, _ in figures(run)} == attacks


def test_nothing_crosses_where_no_network_is_split():
    (round,) = experiment("fedavg", leakage=few()).rounds()
    assert round.leakage is None


def test_what_the_attacker_knows_is_not_attacked():
    shares = [np.arange(10 * c, 10 * c + 10) for c in range(5)]
    known, attacked = chosen_samples(shares, Leakage(samples=11, aux_share=0.3), seed=0)
    assert sum(map(len, known.values())) == 15
    assert [len(own) for own in attacked.values()] == [3, 3, 3]
    assert not known.keys() & attacked.keys()
    for c, own in {**known, **attacked}.items():
        assert set(own) <= set(shares[c])
    known, attacked = chosen_samples(shares, Leakage(samples=10, aux_share=1.0), seed=0)
    assert (len(known), len(attacked)) == (4, 1)


def test_a_client_with_another_cut_is_attacked_there():
    found = figures(experiment("splitfed_v1", cut={"by": "client", "values": [1, 2, 2, 1]}, leakage=few()))
    assert {cut for cut, *_ in found} == {0, 1, 2}


def test_a_deep_cut_gives_less_away_than_a_shallow_one_and_more_than_the_mean_image():
    shallow, deep = (figures(experiment(cut=cut, leakage=few(epochs=20))) for cut in (1, 3))
    for metric in ("psnr", "ssim"):
        assert shallow[1, "inversion", metric] > deep[3, "inversion", metric]
    assert shallow[1, "inversion", "mse"] < 0.5 * shallow[0, "mean", "mse"]
    assert shallow[1, "dependence", "dcor2_unbiased"] > 0.9


@pytest.mark.parametrize(("method", "share"), [("splitfed_v2", 1.0), ("multiexit", 0.5), ("splitgp", 0.5)])
def test_gradients_are_those_of_the_mean_loss_which_decides_how_much_noise_hides(method, share):
    """With an exit the server trains by its share of the loss, and its gradients are that much shorter."""
    run = experiment(method, leakage=few())
    list(run.rounds())
    gradients, expected = exchanged(run)
    torch.testing.assert_close(gradients, share * expected)


def exchanged(run):
    """Gradients that the meter hears of a mini-batch, and those of its mean loss by the activations that it hears."""
    (front, back), images = run.method.sides(0), run.meter.images
    with torch.no_grad():
        smashed = through(front, images.prepare(images.x[:8]), training=False)
    seen, gradients = run.meter._exchanged(smashed, images.y[:8], back, (1, 1, 0, 0))
    torch.nn.functional.cross_entropy(through(back, seen.requires_grad_(), training=False), images.y[:8]).backward()
    return gradients, seen.grad


@pytest.mark.parametrize(
    "sections", [{"wire": {"up": {"kind": "splitfc", "ratio": 4.0, "bits": 32}}}, {"privacy": {"noise": {"clip": 0.1}}}]
)
def test_gradients_are_those_that_travel_before_the_client_scales_them(sections):
    """By SplitFC's probabilities, or by the factors of its clipping, which it tells nobody."""
    gradients, expected = exchanged(experiment(leakage=few(), **sections))
    assert gradients.any()
    torch.testing.assert_close(gradients, expected * gradients.any(0))


def test_while_a_decoder_learns_one_hears_of_it():
    run, told = experiment(leakage=few(attacks=["inversion"])), []
    run.meter.tell = lambda *news: told.append(news)
    list(run.rounds())
    assert told == [(f"decoder at cut {cut}", epoch, 2) for cut in (0, 1) for epoch in (0, 1)]


def test_noise_is_attacked_as_it_is_sent():
    clear = figures(experiment(leakage=few()))
    noise = figures(experiment(leakage=few(), privacy={"noise": {"sigma": 30.0}}))
    assert noise[1, "inversion", "ssim"] < 0.5 * clear[1, "inversion", "ssim"]
    assert noise[1, "dependence", "dcor2_unbiased"] < 0.5 * clear[1, "dependence", "dcor2_unbiased"]
    hidden = figures(experiment(leakage=few(), privacy={"gradient_noise": {"sigma": 30.0}}))
    assert hidden[1, "clusters", "accuracy"] < 0.5 * clear[1, "clusters", "accuracy"]


@pytest.mark.parametrize("wire", [{"up": "int8", "down": "fp16"}, {"up": {"kind": "topk", "keep": 0.2}},
                                  {"up": {"kind": "splitfc", "ratio": 4.0}}, {"up": {"kind": "delta"}}])  # fmt: skip
def test_what_a_codec_sends_is_attacked(wire):
    assert all(np.isfinite(list(figures(experiment(leakage=few(), wire=wire)).values())))


def test_what_is_not_finite_is_not_attacked():
    run = experiment(leakage=few(attacks=["dependence"]))
    *_, last = run.rounds()
    run.method.part1.weights.flat.fill_(torch.nan)
    figures, _ = run.meter.measure(1)
    assert (len(last.leakage), len(figures)) == (2, 0)
    assert list(figures) == list(last.leakage)


def embedding(shape, n_labels):
    return nn.Sequential(nn.Embedding(n_labels, 6), nn.Sequential(nn.Flatten(), nn.Linear(6 * shape[0], n_labels)))


def test_texts_are_read_word_by_word():
    rng = np.random.default_rng(0)
    texts = torch.from_numpy(rng.integers(0, 7, (200, 5), dtype=np.uint8)), torch.from_numpy(rng.integers(0, 7, 200))
    data = {"factory": Dataset("texts", *texts, *texts, tuple("abcdefg")), "partition": {"kind": "iid"}}
    run = experiment(data=data, model={"factory": embedding, "cut": 1}, leakage=few(epochs=600))
    found = figures(run)
    assert found[1, "inversion", "token_accuracy"] > 0.9
    assert found[0, "mean", "token_accuracy"] < 0.3
    assert {metric for _, attack, metric in found if attack == "inversion"} == {"token_accuracy"}


def test_images_are_kept_as_they_are_and_as_they_were_drawn():
    run = experiment(leakage=few())
    *_, last = run.rounds()
    table = last.final["reconstructions"]
    for row in table.itertuples():
        original = np.frombuffer(row.original, dtype=np.uint8).reshape(row.shape)
        assert np.array_equal(original, run.dataset.x_train[row.sample].numpy())
        assert len(row.drawn) == len(row.original)
    assert table.groupby(["cut", "attack"]).size().to_dict() == dict.fromkeys(
        [(0, "inversion"), (0, "mean"), (1, "inversion")], 8
    )
    assert table["label"].nunique() == 8


def test_a_checkpoint_keeps_what_was_measured():
    *_, last = experiment(leakage=few()).rounds()
    stored = StoredRound(last.row, last.labels, None, last.leakage)
    again = StoredRound.from_json(json.loads(json.dumps(stored.as_json())))
    assert again.confusion is None
    assert again.leakage.equals(last.leakage.reset_index(drop=True))


@pytest.mark.parametrize(
    ("key", "sections"),
    [
        ("clients.count", {"clients": {"count": 1}}),
        ("report.leakage.rounds", {"leakage": few(rounds=[3])}),
        ("privacy.nopeek", {"lora": {"targets": ["fc"]}, "privacy": {"nopeek": 1.0}}),
        ("wire.up", {"wire": {"up": "delta"}, "privacy": {"noise": {"sigma": 1.0}}}),
        ("privacy", {"method": "harmony", "privacy": {"nopeek": 1.0}}),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(key, sections):
    with pytest.raises(ScenarioError) as refused:
        experiment(**{"device": None, "leakage": few(), **sections})
    assert refused.value.key == key
