"""The table of networks of other libraries: what it calls right, refused and wrong."""

import copy

import pytest
from torch import nn

from benchmarks.models import compare
from benchmarks.models.networks import networks


class Residual(nn.Module):
    """Draws, counts and adds, as networks of libraries do."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.inner = nn.Conv2d(4, 4, 3, padding=1)
        self.outer = nn.Conv2d(4, 4, 3)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.norm(self.stem(x))
        x = self.outer(x + self.inner(x).relu()).mean((2, 3))
        return self.head(self.drop(x))


def test_a_network_is_cut_behind_its_first_layer_in_the_middle_and_before_its_last():
    row = compare.compared(nn.Sequential(*(nn.Linear(4, 4) for _ in range(6))), (4,), tokens=False)
    assert (row["outcome"], row["layers"], row["cut"]) == ("to the bit", 6, "0 | 2 | 4")


def test_draws_statistics_and_gradients_are_those_of_the_whole_to_the_bit():
    assert compare.compared(Residual(), (3, 8, 8), tokens=False)["outcome"] == "to the bit"


def test_a_refusal_is_told_in_its_line():
    row = compare.compared(nn.Bilinear(4, 4, 2), (4,), tokens=False)
    assert row["outcome"] == "refused"
    assert row["says"].startswith("model.factory")


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda model: setattr(model.drop, "p", 0.25), "output"),
        (lambda model: setattr(model.norm, "momentum", 0.3), "buffer"),
        (lambda model: model.inner.requires_grad_(False), "gradient"),
    ],
)
def test_a_network_whose_parts_are_trained_otherwise_is_wrong(monkeypatch, change, where):
    made = compare.zoo.network

    def made_of_another(model, *arguments, **more):
        change(another := copy.deepcopy(model))
        return made(another, *arguments, **more)

    monkeypatch.setattr(compare.zoo, "network", made_of_another)
    row = compare.compared(Residual(), (3, 8, 8), tokens=False)
    assert row["outcome"] == "wrong"
    assert row["says"].startswith(where)


def test_every_network_has_a_name_of_its_own():
    names = [(known.library, known.family, known.name) for known in networks()]
    assert len(names) == len({*names}) > 250
