"""Mini-batches: sizes, order, augmentation, and what cannot be cut into batches."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from small_world import images

from sfl_sim.data.batches import ClientData, Images
from sfl_sim.data.loading import load
from sfl_sim.errors import ScenarioError


def data(sizes, batch_size, augment=False, **more):
    shares = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    source = Images(images(sum(sizes)), torch.device("cpu"), torch.float32, channels_last=True, augment=augment)
    return ClientData(shares, batch_size, images=source, **more)


def test_an_incomplete_last_batch_is_kept_or_dropped():
    assert [b.samples for b in data([10], 4).batches(0, 1)] == [4, 4, 2]
    assert [b.samples for b in data([10], 4, rest="drop").batches(0, 1)] == [4, 4]


@settings(max_examples=40)
@given(samples=st.integers(1, 30), batch_size=st.integers(1, 12), local_epochs=st.integers(1, 5))
def test_full_batches_are_cut_out_of_the_epochs_in_a_row(samples, batch_size, local_epochs):
    """T = max(1, floor(E n / B)) of one size, which hold what the epochs hold, in their order."""
    source = data([3, samples], batch_size, local_epochs=local_epochs, rest="carry")
    batches = list(source.batches(1, 4))
    assert len(batches) == source.n_batches(1) == max(1, local_epochs * samples // batch_size)
    assert {batch.samples for batch in batches} == {min(batch_size, local_epochs * samples)}
    assert source.seen(1) == sum(batch.samples for batch in batches)
    by_epoch = list(source.epochs(1, 4))
    assert len(by_epoch) == local_epochs
    steps = [batch.step for epoch in by_epoch for batch in epoch]
    assert steps == [batch.step for batch in batches] == list(range(len(batches)))
    whole = data([3, samples], samples, local_epochs=local_epochs)
    in_a_row = torch.cat([batch.load()[0] for batch in whole.batches(1, 4)])
    found = torch.cat([batch.load()[0] for batch in batches])
    assert torch.equal(found, in_a_row[: len(found)])
    further = list(source.steps(1, 4, len(batches) + 2))
    assert [batch.samples for batch in further] == [batches[0].samples] * len(further)


@settings(max_examples=60)
@given(
    samples=st.integers(1, 20),
    batch_size=st.integers(1, 8),
    local_epochs=st.integers(1, 4),
    rest=st.sampled_from(["keep", "drop", "carry"]),
)
def test_what_is_counted_is_what_is_dealt(samples, batch_size, local_epochs, rest):
    """Mini-batches, samples, and whether one of them is alone in its mini-batch."""
    batch_size = min(batch_size, samples) if rest == "drop" else batch_size
    source = data([samples], batch_size, local_epochs=local_epochs, rest=rest)
    sizes = [batch.samples for batch in source.batches(0, 1)]
    assert (source.n_batches(0), source.seen(0)) == (len(sizes), sum(sizes))
    with pytest.raises(ScenarioError, match="holds a single sample") if 1 in sizes else nullcontext():
        source.check_no_single()


def test_many_epochs_are_counted_without_being_dealt():
    source = ClientData([np.arange(10)] * 1000, 4, local_epochs=10_000_000)
    source.check_no_single()
    assert source.seen(0) == 100_000_000


def test_full_batches_are_those_of_the_epochs_where_these_have_no_rest():
    full, plain = (data([12], 4, augment=True, local_epochs=3, rest=rest) for rest in ("carry", "keep"))
    for one, other in zip(full.batches(0, 1), plain.batches(0, 1), strict=True):
        assert all(map(torch.equal, one.load(), other.load()))


def test_steps_count_through_all_local_epochs():
    source = data([10], 4, local_epochs=2)
    assert [b.step for b in source.batches(0, 1)] == [0, 1, 2, 3, 4, 5]
    assert source.n_batches(0) == 6


@settings(max_examples=20)
@given(samples=st.integers(1, 12), batch_size=st.integers(1, 5), local_epochs=st.integers(1, 3), n=st.integers(0, 20))
def test_steps_begin_with_the_batches_of_the_round_and_continue_with_new_epochs(samples, batch_size, local_epochs, n):
    source = data([3, samples], batch_size, augment=True, local_epochs=local_epochs)
    whole_round, steps = list(source.batches(1, 2)), list(source.steps(1, 2, n))
    assert [batch.step for batch in steps] == list(range(n))
    longer = data([3, samples], batch_size, augment=True, local_epochs=local_epochs + n).batches(1, 2)
    for number, batch in zip(range(max(n, len(whole_round))), longer, strict=False):
        for others in (whole_round, steps):
            if number < len(others):
                assert all(map(torch.equal, others[number].load(), batch.load()))


@settings(max_examples=20)
@given(st.data())
def test_some_samples_of_every_label(draw):
    """Draws hold the requested numbers of the client's own samples, none twice, each in its own order."""
    source = data([5, 30], 4)
    own = source.images.labels[source.shares[1]]
    held = np.bincount(own, minlength=3)
    counts = np.array([draw.draw(st.integers(0, int(n))) for n in held])
    batch = source.some(1, counts, "a draw", 7)
    x, labels = batch.load()
    assert batch.samples == len(x) == counts.sum()
    assert np.bincount(labels, minlength=3).tolist() == counts.tolist()
    own_images = source.images.prepare(source.images.x[source.shares[1]]).reshape(30, 16)
    found = [int((own_images == image).all(dim=1).nonzero()[0]) for image in x.reshape(len(x), 16)]
    assert len(set(found)) == len(found)
    assert own[found].tolist() == labels.tolist()
    assert all(map(torch.equal, (x, labels), source.some(1, counts, "a draw", 7).load()))


def test_the_samples_of_two_draws_differ():
    source = data([30], 4)
    few = np.minimum(2, np.bincount(source.images.labels[source.shares[0]], minlength=3))
    first, second = (source.some(0, few, "a draw", number).load()[0] for number in (1, 2))
    assert not torch.equal(first, second)


def test_epochs_are_drawn_only_when_their_steps_are_needed(monkeypatch):
    source, dealt = data([10], 4), []
    monkeypatch.setattr(ClientData, "_epoch", lambda self, client, round, number, draws: dealt.append(number))
    steps = source.steps(0, 1, 1000)
    assert dealt == []
    assert [next(steps).samples for _ in range(4)] == [4, 4, 2, 4]
    assert dealt == [0, 1]


def test_other_batches_hold_the_same_samples_in_another_order():
    source = data([10, 6], 4, local_epochs=2)
    usual, others = (list(batches(1, 3)) for batches in (source.batches, source.others))
    assert [batch.samples for batch in usual] == [batch.samples for batch in others] == [4, 2, 4, 2]
    rows = [torch.cat([batch.load()[0] for batch in batches[:2]]).flatten(1).tolist() for batches in (usual, others)]
    assert sorted(rows[0]) == sorted(rows[1])
    assert rows[0] != rows[1]


def test_every_epoch_shows_every_sample_once_in_a_new_order():
    epochs = list(data([10, 6], 4, local_epochs=2).epochs(1, 1))
    seen = [torch.cat([batch.load()[0] for batch in epoch]).flatten(1) for epoch in epochs]
    assert sorted(seen[0].tolist()) == sorted(seen[1].tolist())
    assert seen[0].tolist() != seen[1].tolist()


def test_images_are_normalised_and_laid_out_channels_last():
    source = data([8], 8)
    (batch,) = source.batches(0, 1)
    x, y = batch.load()
    order = [int((source.images.x == ((row * 0.5 + 0.5) * 255).round()).flatten(1).all(1).nonzero()[0]) for row in x]
    assert sorted(order) == list(range(8))
    assert y.tolist() == source.images.y[order].tolist()
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert x.dtype == torch.float32


def test_augmented_batches_are_the_same_when_they_are_made_again():
    first, second = (torch.cat([b.load()[0] for b in data([9], 4, augment=True).batches(0, 1)]) for _ in range(2))
    plain = torch.cat([b.load()[0] for b in data([9], 4).batches(0, 1)])
    assert torch.equal(first, second)
    assert not torch.equal(first, plain)


def test_samples_do_not_depend_on_when_a_batch_is_loaded():
    source = data([9], 4, augment=True, local_epochs=2)
    one_by_one = [batch.load() for batch in source.batches(0, 1)]
    late_and_backwards = [batch.load() for batch in reversed(list(source.batches(0, 1)))]
    for (x, y), (late_x, late_y) in zip(one_by_one, reversed(late_and_backwards), strict=True):
        assert torch.equal(x, late_x)
        assert torch.equal(y, late_y)


def test_a_client_without_a_whole_batch_is_named():
    with refused("train.batch_size", says="client 1 has 3 samples"):
        data([10, 3], 4, rest="drop")


def test_a_batch_of_one_sample_is_refused_for_batch_norm():
    data([8], 4).check_no_single()
    with refused("train.batch_size", found=4):
        data([9], 4).check_no_single()


def test_a_timing_only_batch_has_a_size_and_no_samples():
    (batch,) = ClientData([np.arange(3)], 4).batches(0, 1)
    assert batch.samples == 3
    with pytest.raises(AssertionError, match="no samples"):
        batch.load()


def test_tokens_stay_whole_numbers():
    text = load("synthetic", shape=(12,), n_labels=7, samples=40)
    source = Images(text, torch.device("cpu"), torch.float32, channels_last=False, augment=False)
    (batch,) = ClientData([np.arange(40)], 40, images=source).batches(0, 1)
    x, _ = batch.load()
    assert x.dtype == torch.int64
    assert sorted(x.tolist()) == sorted(text.x_train.tolist())
