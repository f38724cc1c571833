"""Losses: their sums are what their means are, and what is ignored counts in neither."""

import pytest
import torch
from torch.nn import functional

from sfl_sim.goals import NO_LABEL, NO_TOKEN, Goal
from sfl_sim.models.losses import LOSSES, ByMean, counted, cross_entropy, of_pixels

DRAWN = torch.Generator().manual_seed(0)
CASES = {
    Goal.LABEL: (torch.randn(5, 3, generator=DRAWN), torch.tensor([0, 1, 2, 0, 1])),
    Goal.TOKENS: (torch.randn(5, 4, 3, generator=DRAWN), torch.randint(3, (5, 4), generator=DRAWN)),
    Goal.LABEL_SET: (torch.randn(5, 3, generator=DRAWN), torch.randint(2, (5, 3), generator=DRAWN).to(torch.uint8)),
    Goal.NUMBERS: (torch.randn(5, 3, generator=DRAWN), torch.randn(5, 3, generator=DRAWN)),
    Goal.PIXELS: (torch.randn(5, 3, 2, 2, generator=DRAWN), torch.randint(3, (5, 2, 2), generator=DRAWN).byte()),
}


@pytest.mark.parametrize(("goal", "name"), [(goal, name) for goal, losses in LOSSES.items() for name in losses])
def test_a_sum_is_the_mean_times_what_is_counted(goal, name):
    loss, (outputs, targets) = LOSSES[goal][name], CASES[goal]
    total = loss(outputs, targets, reduction="sum")
    assert float(total) == pytest.approx(float(loss(outputs, targets)) * int(counted(targets).sum()))
    assert float(ByMean(loss)(outputs, targets, reduction="sum")) == pytest.approx(float(total))


def test_tokens_and_pixels_that_are_ignored_do_not_count():
    outputs, tokens = CASES[Goal.TOKENS]
    tokens = tokens.clone()
    tokens[:, 2:] = NO_TOKEN
    assert float(cross_entropy(outputs, tokens)) == pytest.approx(float(cross_entropy(outputs[:, :2], tokens[:, :2])))
    outputs, masks = CASES[Goal.PIXELS]
    masks = masks.clone()
    masks[:, 1] = NO_LABEL
    rest = functional.cross_entropy(outputs[:, :, 0], masks[:, 0].long())
    assert float(of_pixels(outputs, masks)) == pytest.approx(float(rest))
    assert int(counted(masks).sum()) == 10


def test_no_number_and_no_flag_is_ignored():
    assert counted(torch.tensor([[-100.0], [255.0]])).all()
    assert counted(torch.tensor([[156, 255]], dtype=torch.uint8)).all()


def test_pixels_are_classified_one_by_one():
    outputs, masks = CASES[Goal.PIXELS]
    flat = cross_entropy(outputs.permute(0, 2, 3, 1).reshape(-1, 3), masks.flatten().long())
    assert float(of_pixels(outputs, masks)) == pytest.approx(float(flat))
