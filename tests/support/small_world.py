"""A small world for tests: a few clients with random data and a small network in float64, under any clock."""

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from sfl_sim.data.batches import ClientData, Images
from sfl_sim.data.loading import Dataset
from sfl_sim.data.partition import label_counts
from sfl_sim.methods import METHODS, Task
from sfl_sim.models.network import Network
from sfl_sim.rng import stream
from sfl_sim.scenario.sections import Clients, Server
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ORDERS
from sfl_sim.system.fleet import build_fleet
from sfl_sim.training.alternatives import Alternatives
from sfl_sim.training.eager import Eager
from sfl_sim.training.timing import Timing

CPU = torch.device("cpu")
N_LABELS = 3


def mlp(shape, n_labels):
    """Three layers without batch norm, for identities that need none."""
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 8), nn.Tanh()),
        nn.Sequential(nn.Linear(8, 6), nn.Tanh()),
        nn.Linear(6, n_labels),
    )


def batch_norm_net(shape, n_labels):
    """A small convolutional network with batch norm."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()),
        nn.Linear(4 * shape[1] * shape[2], n_labels),
    )


def images(n, seed=0):
    """Random 4x4 images of three labels as a data set."""
    rng = stream(seed, "test images")
    x = torch.from_numpy(rng.integers(0, 256, (n, 1, 4, 4), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, N_LABELS, n))
    half = torch.full((1,), 0.5)
    return Dataset("random", x, y, x[:9], y[:9], ("a", "b", "c"), half, half)


def attention_net(shape, n_labels):
    """Embedding of an image's rows, three small transformer blocks, and a linear map, for adapters."""
    blocks = {f"block{i}": nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for i in (1, 2, 3)}
    embedding = nn.Sequential(nn.Flatten(1, 2), nn.Linear(shape[2], 8))
    head = nn.Sequential(nn.Flatten(), nn.Linear(8 * shape[1], n_labels))
    return nn.Sequential(OrderedDict(embedding=embedding, **blocks, head=head))


def task(
    samples=(12, 8, 4), batch_size=4, build=mlp, cut=1, cuts=None, local_epochs=1, device=CPU, seed=0, lora=None,
    **settings,
):  # fmt: skip
    """A task whose client c holds `samples[c]` random images; `cuts` are those of the clients, if they differ."""
    net = Network("small", build, (1, 4, 4), N_LABELS, torch.float64, lora=lora)
    shares = np.split(np.arange(sum(samples)), np.cumsum(samples)[:-1])
    dataset = images(sum(samples))
    source = device and Images(dataset, device, net.dtype, net.channels_last, augment=False)
    data = ClientData(shares, batch_size, local_epochs, seed=seed, images=source or None)
    settings = {
        "cuts": cuts or [cut] * len(samples),
        "lr": 0.1,
        "label_names": dataset.label_names,
        "label_counts": label_counts(dataset.y_train.numpy(), shares, N_LABELS),
        **settings,
    }
    return Task(network=net, data=data, seed=seed, device=device, **settings)


def fleet(n, macs_per_s=1e6, uplink_bps=1e6, downlink_bps=1e6, speedup=100.0, **network):
    """Clients with the given rates (numbers or lists)."""
    links = {"uplink_bps": uplink_bps, "downlink_bps": downlink_bps, **network}
    return build_fleet(n, 0, Clients(compute={"macs_per_s": macs_per_s}, network=links), Server(speedup=speedup))


NEUTRAL = {"smofi": {"server_momentum": 0.0}, "fedavgm": {"server_momentum": 0.0}, "slowmo": {"slow_momentum": 0.0},
           "fedprox": {"mu": 0.0}, "fednar": {"max_norm": 1e9}}  # fmt: skip
"""Options with which the momentum family does no more than SplitFedV1 where all clients have equally many batches."""


WITHOUT_EXITS = {
    "multiexit": {"gamma_loss": 0.0},
    "splitgp": {"gamma_loss": 0.0, "lambda_pers": 0.0},
    "harmony": {"gamma_loss": 0.0, "inner_steps": 0, "csa_weight": 0.0, "quantise": False},
}
"""Options with which exits are not trained and change nothing: SplitFedV1 where all clients have one cut."""


def usual_options(name):
    """Hydra's usual heads would leave no trunk to networks with three layers, everybody takes part, and a client that
    is alone trains as if there were no others."""
    usual = {"hydra": {"cut2": 2}, "korea": {"assistants": "all", "proportion": "fixed", "p0": 0.5}}
    usual |= {"fedbuff": {"buffer": 1}, "fedasync": {"alpha": 1.0}}
    return (usual | NEUTRAL).get(name, {})


def simulate(name, work, rounds=2, order="fcfs", world=None, options=None, executor=None, clients=None, **settings):
    """Run a method; its object, the simulator, and the operations of all rounds."""
    kind = METHODS[name]
    if name == "fednag" and not work.momentum:  # which it averages
        work = replace(work, momentum=0.9)
    method = kind(work, kind.Options(**(usual_options(name) if options is None else options)))
    simulator = EventClock(
        world or fleet(len(work.data)),
        executor or (Eager() if work.device else Timing()),
        ORDERS[order],
        **{"workers": float("inf"), **settings},
    )
    rows = []
    simulator.run(method.setup(), 1, in_round=False)
    for number in range(1, rounds + 1):
        simulator.run(method.round(number, clients or range(len(work.data))), number)
        rows.append(simulator.take_rows())
    return method, simulator, np.concatenate(rows)


def tensors(method):
    """The global model's numbers, in the order of the layers whatever the cut; of alternatives, under their names."""
    found = {}
    for part in method.model():
        alternatives = part.replicas if isinstance(part, Alternatives) else {"": part}
        for name, replica in alternatives.items():
            prefix = f"{name}." if len(alternatives) > 1 else ""
            found |= {prefix + key: tensor for key, tensor in replica.weights.named_tensors()}
    return found


def distance(one, other):
    """The largest difference between two methods' global models."""
    a, b = tensors(one), tensors(other)
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)
