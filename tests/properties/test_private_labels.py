"""HARMONY's labels stay at home, and what is left of training with exits is of the sizes that it should be."""

from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
import torch
from small_exits import WITH_EXITS, deep_task
from small_world import simulate, task
from torch import nn

from sfl_sim.data.batches import Batch, Images
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.models.part import Part
from sfl_sim.models.zoo import network
from sfl_sim.ops import ServerNode
from sfl_sim.testing import Watching
from sfl_sim.training.codecs import Codec
from sfl_sim.training.executors import Eager

WITHOUT_CONTENTS = (Part, Codec, torch.dtype, type)
"""What all nodes know."""


class Customs(Eager):
    """Looks for labels in all that is sent, and in all that the server works with."""

    def __init__(self, work):
        super().__init__()
        mini_batches = [
            batch
            for c in range(len(work.data))
            for number in range(1, 3)
            for draw in (work.data.batches, work.data.others)
            for batch in draw(c, number)
        ]
        self.labels = [batch.load()[1] for batch in mini_batches]
        self.found = []
        self.inspected = 0

    def snapshot(self, payload):
        sent = super().snapshot(payload)
        self.inspect(sent, sent.kind)
        return sent

    def run(self, op):
        if isinstance(op.node, ServerNode):
            self.inspect(op.args, f"taken by {op.step.name}")
        return super().run(op)

    def inspect(self, thing, where):
        """List all objects reachable from `thing`, as far as they are not what all nodes know."""
        if isinstance(thing, torch.Tensor):
            self.inspected += 1
            if self.is_label(thing) or thing.grad_fn is not None:
                self.found.append(where)
            return
        if isinstance(thing, Batch | Images | np.ndarray):
            self.found.append(where)
            return
        if isinstance(thing, dict):
            inside = [*thing.values()]
        elif isinstance(thing, list | tuple):
            inside = thing
        elif is_dataclass(thing):
            inside = [getattr(thing, field.name) for field in fields(thing)]
        elif isinstance(thing, WITHOUT_CONTENTS) or not type(thing).__module__.startswith("sfl_sim"):
            assert isinstance(thing, (*WITHOUT_CONTENTS, int, float, str, type(None))), f"{where} holds {thing!r}"
            return
        else:
            slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
            names = {*slots, *getattr(thing, "__dict__", {})} - {"__weakref__"}
            inside = [getattr(thing, name) for name in names]
        for one in inside:
            self.inspect(one, where)

    def is_label(self, tensor):
        """Return True for a tensor with the labels' type or numbers, or with one value for each label."""
        if not tensor.is_floating_point() and tensor.dtype != torch.bool:
            return True
        one_hot = [nn.functional.one_hot(labels, 3) for labels in self.labels if tensor.shape == (len(labels), 3)]
        same_shape = [labels for labels in self.labels if tensor.shape == labels.shape]
        return any(torch.equal(tensor.double(), told.double()) for told in [*one_hot, *same_shape])


def test_no_label_crosses_the_wire():
    """HARMONY's server is told of each pair of samples whether their labels are the same, no more."""
    work = deep_task(samples=[16, 8, 16, 8], batch_size=8)
    customs = Customs(work)
    simulate("harmony", work, executor=customs, options={"inner_steps": 1})
    assert customs.inspected > 100
    assert customs.found == []
    control = Customs(work)
    simulate("multiexit", work, executor=control, options={})
    assert set(control.found) == {"smashed", "taken by train"}


@pytest.mark.parametrize("head", ["embedding", "logits"])
def test_of_answers_the_gradient_tells_the_labels_and_of_embeddings_it_does_not(head):
    """Find the label as the one negative element of softmax - onehot: the classifier is at the client (harmony.md)."""
    work = deep_task(samples=[8, 8], cuts=[1, 1], batch_size=8, local_epochs=1)
    gradients = []

    def open_it(op, content):
        if not isinstance(op.node, ServerNode) and op.step.name == "assess":
            gradients.append(content)

    simulate("harmony", work, rounds=1, executor=Watching(done=open_it), options={"head": head, "inner_steps": 1})
    labels = [batch.load()[1] for c in range(2) for batch in work.data.batches(c, 1)]
    guessed = [gradient.argmin(1) for gradient in gradients]
    told = [any(torch.equal(guess, y) for y in labels) for guess in guessed]
    assert told == [head == "logits"] * 2


def test_what_clients_and_server_hold_in_the_end_is_of_the_sizes_of_table_1():
    """The 8-layer CNN of docs/methods/harmony.md#models: |phi| and |h| by depth, and the rest of the network."""
    cuts = [2, 3, 4]
    work = replace(task([4, 4, 4], cuts=cuts, device=None), network=network("cnn8", (1, 28, 28), 10))
    method = METHODS["harmony"](work)
    deployed = [method.deployed(c) for c in range(3)]
    heads = [one.head.part.n_parameters for one in deployed]
    phis = [one.device_parameters - head for one, head in zip(deployed, heads, strict=True)]
    assert (phis[0], phis[2]) == (18_816, 387_840)
    assert (heads[0], heads[2]) == (5_770, 23_050)
    assert [one.server_parameters for one in deployed] == [3_868_170 - phi for phi in phis]


@pytest.mark.parametrize("name", WITH_EXITS)
def test_clients_cannot_be_cut_where_there_is_no_exit(name):
    work = replace(task([4, 4], cuts=[2, 1], device=None), network=network("cnn8", (1, 28, 28), 10))
    with pytest.raises(ScenarioError) as refused:
        METHODS[name](work)
    assert refused.value.key == "model.cut"


def test_fine_tuning_takes_steps_and_a_learning_rate():
    with pytest.raises(ScenarioError) as refused:
        METHODS["splitgp"](deep_task(), METHODS["splitgp"].Options(ft_steps=3))
    assert refused.value.key == "method.ft_lr"
