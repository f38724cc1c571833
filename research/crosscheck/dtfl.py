"""Drives the scheduler and the averages of DTFL's authors (mahmoudsajjadi/DTFL) with what our run has seen and trained.

Their main program is a script for ResNets on CIFAR that holds profiles of their devices; so the two functions that make
the method are called: `TierScheduler` with times of our rounds, and `aggregated_fedavg` with our copies.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch

from research.crosscheck.ours import Ours, State
from research.crosscheck.report import Found
from research.crosscheck.theirs import within
from sfl_sim.methods.dtfl import Dtfl, deepest, smoothed
from sfl_sim.methods.server_copies import ClientVisit
from sfl_sim.models.replica import Joined, Replica
from sfl_sim.ops import SERVER, Flow, ServerNode

REPOSITORY, MARK = "mahmoudsajjadi/DTFL", "utils/TierScheduler.py"
N_CLIENTS, N_TIERS, TRIES = 10, 6, 100
HEAD = {f"module.fc.{name}": torch.zeros(()) for name in ("bias", "weight")}
"""What their averages take a client's head to be called."""


def compare(checkout: Path) -> Iterator[Found]:
    """Compare averages of layers that some clients hold and others do not, and choices of tiers."""
    copies: list[Mapping[int, ClientVisit]] = []
    average_at = Dtfl.average_at

    def noted(self: Dtfl, node: ServerNode, visits: Mapping[int, ClientVisit], round: int) -> Flow:
        if node is SERVER:
            copies.append(dict(visits))
        yield from average_at(self, node, visits, round)

    with patch.object(Dtfl, "average_at", noted):
        speeds = [1e5 * 2.0**c for c in range(N_CLIENTS)]
        ours = Ours(
            clients={"compute": {"macs_per_s": speeds}, "network": {"uplink_bps": 1e6, "downlink_bps": 1e6}},
            server={"macs_per_s": 1e6}, train={"agg_weights": "samples"}, method={"name": "dtfl", "tiers": [1, 2, 3]},
        )  # fmt: skip
        with within(checkout, {}):
            average = import_module("utils.fedavg").aggregated_fedavg
            scheduler = import_module("utils.TierScheduler")
            theirs = [_averaged(average, ours, visits) for visits in copies]
            chosen = [_choices(scheduler, np.random.default_rng(seed)) for seed in range(TRIES)]
    yield Found.between("dtfl, averages of layers by tiers", ours, theirs)
    yield Found("dtfl, tiers by 100 random times, in tiers", [max(tiers for tiers, _ in chosen)])
    yield Found("dtfl, smoothed times, as a share", [max(share for _, share in chosen)])


def _averaged(average: Any, ours: Ours, visits: Mapping[int, ClientVisit]) -> State:
    at_clients = [named(visit.part1) | HEAD for visit in visits.values()]
    at_server = [named(visit.part2) for visit in visits.values()]
    weights = [ours.data.samples(c) for c in visits]
    found: State = average(at_server, at_clients, N_TIERS, len(visits), True, weights, list(visits))
    return found


def named(part: Replica | Joined) -> State:
    """Copy the tensors of a part by name."""
    return {name: tensor.clone() for member in part.members for name, tensor in member.weights.named_tensors()}


def _choices(scheduler: Any, rng: np.random.Generator) -> tuple[float, float]:
    """Let their scheduler choose by random times; gives the largest difference of tiers, and of smoothed times.

    Their tier 1 has the most layers at a client. Their threshold is that of the round before, and ours, the paper's, of
    this one: so they are asked again with what they have found.
    """
    rounds, estimates = 4, []
    tiers = [dict(enumerate(rng.integers(1, N_TIERS + 1, N_CLIENTS).tolist())) for _ in range(rounds)]
    times_s = rng.uniform(1, 100, (N_CLIENTS, rounds))
    known = {
        "client_tier_all": tiers, "num_tiers": N_TIERS + 1, "num_users": N_CLIENTS, "batch_size": 1,
        "delay_history": {c: pd.Series(row) for c, row in enumerate(times_s)},
        "dataset_size": dict.fromkeys(range(N_CLIENTS), 0), "net_speed": dict.fromkeys(range(N_CLIENTS), 1.0),
    }  # fmt: skip
    choose = scheduler.index_of_greatest_smaller

    def noted(times: Sequence[float], longest_s: float) -> Any:
        estimates.append(list(times))
        return choose(times, longest_s)

    with patch.object(scheduler, "index_of_greatest_smaller", noted):
        longest_s = np.inf
        for _ in range(2):
            estimates.clear()
            past = {c: list(row[:-1]) for c, row in enumerate(times_s)}
            chosen, longest_s, _ = scheduler.TierScheduler(past, longest_s, **known)
    ours = deepest({c: {-tier: time_s for tier, time_s in enumerate(row, 1)} for c, row in enumerate(estimates)})
    apart = max(abs(-ours[c] - chosen[c]) for c in chosen)
    own = [[times_s[c, r] for r in range(rounds) if tiers[r][c] == tiers[-1][c]] for c in range(N_CLIENTS)]
    shares = [abs(estimates[c][tiers[-1][c] - 1] / smoothed(own[c]) - 1) for c in range(N_CLIENTS)]
    return float(apart), max(shares)
