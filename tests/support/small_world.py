"""A small world for tests: a few clients with random data and a small network in float64, under any clock."""

from collections import OrderedDict
from dataclasses import replace

from hypothesis import strategies as st
from torch import nn

from sfl_sim import testing
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS, MethodOptions
from sfl_sim.sim.orders import ORDERS
from sfl_sim.testing import (
    CPU,
    N_LABELS,
    World,
    batch_norm_net,
    cases_of,
    distance,
    fleet,
    images,
    mlp,
    task,
    tensors,
    unsplit,
)  # fmt: skip

__all__ = [
    "ANY_CUT", "CASES", "CPU", "N_LABELS", "attention_net", "batch_norm_net", "deep_net", "distance", "fleet", "images",
    "mlp", "simulate", "takes", "task", "tensors", "unsplit", "usual_options", "worlds",
]  # fmt: skip

CASES = [case for kind in METHODS.values() for case in cases_of(kind)]
"""All methods, with the options that they give as examples."""


def takes(case, **settings):
    """Return True if a method does not refuse such a task."""
    try:
        case.method(task(momentum=0.9, device=None, **settings))
    except ScenarioError:
        return False
    return True


ANY_CUT = [case for case in CASES if case.kind.has("is_split", case.options) and takes(case, cuts=[1, 2, 1])]
"""Methods whose clients may have different cuts."""


def attention_net(shape, n_labels):
    """Embedding of an image's rows, three small transformer blocks, and a linear map, for adapters."""
    blocks = {f"block{i}": nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for i in (1, 2, 3)}
    embedding = nn.Sequential(nn.Flatten(1, 2), nn.Linear(shape[2], 8))
    head = nn.Sequential(nn.Flatten(), nn.Linear(8 * shape[1], n_labels))
    return nn.Sequential(OrderedDict(embedding=embedding, **blocks, head=head))


def deep_net(shape, n_labels):
    """Five layers, one without weights, two with batch norm."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 3, 3, padding=1), nn.BatchNorm2d(3)),
        nn.ReLU(),
        nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()),
        nn.Sequential(nn.Linear(4 * shape[1] * shape[2], 6), nn.Tanh()),
        nn.Linear(6, n_labels),
    )


def usual_options(name):
    """Return a method's first example of options."""
    first, *_ = METHODS[name].examples or (MethodOptions(),)
    return first.model_dump(exclude_unset=True)


def simulate(name, work, rounds=2, order="fcfs", world=None, options=None, executor=None, clients=None, **settings):
    """Run a method; its object, the simulator, and the operations of all rounds."""
    kind = METHODS[name]
    options = kind.Options(**(usual_options(name) if options is None else options))
    try:
        method = kind(work, options)
    except ScenarioError as error:
        if error.key != "train.momentum":
            raise
        method = kind(replace(work, momentum=0.9), options)
    return testing.simulate(method, [clients] * rounds if clients else rounds, order, world, executor, **settings)


@st.composite
def worlds(draw, samples, **settings):
    """Draw clients of any rates, which some of them take part in, in any order; `settings` are drawn for the task."""
    samples = draw(samples)
    n, rate = len(samples), st.floats(1e4, 1e6)
    rates = [draw(st.lists(rate, min_size=n, max_size=n)) for _ in range(3)]
    clients = draw(st.permutations(range(n)))[: draw(st.integers(1, n))]
    return World(
        samples, *rates, draw(st.sampled_from([0.5, 3.0, 100.0])), draw(st.sampled_from(sorted(ORDERS))),
        draw(st.sampled_from([1, 2, float("inf")])), [clients] * 2,
        {name: draw(values) for name, values in settings.items()},
    )  # fmt: skip
