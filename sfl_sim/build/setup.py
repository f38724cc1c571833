"""Setup: what a variant with a seed begins with, before anything runs: data, its shares, and the simulated system."""

from __future__ import annotations

import numpy as np
import torch

from sfl_sim.build.build import build_method, check_targets
from sfl_sim.build.dealing import deal_data, deal_tests, forget_data
from sfl_sim.data.partition import check_none_empty, cyclic_clients, label_counts, label_order
from sfl_sim.methods import Method
from sfl_sim.rng import stream
from sfl_sim.scenario.presets import expand
from sfl_sim.scenario.sections import Scenario
from sfl_sim.system.fleet import build_fleet


class Setup:
    """Data, clients and system of a variant with a seed. Nothing changes them, so all that runs may share them.

    Args:
        scenario: without grid; `repeats` is ignored.
        pixels: False if nothing is trained, so that a published data set need not be on this machine.

    Attributes:
        scenario: with its presets expanded.
        shares: one array of indices into the training set for each client.
        counts: (C, L) number of training samples by client and label.
        test_sets: one array of indices into the test set for each client; empty if all have the whole test set.
        pixels: as given.
        label_order: (L,) labels in the order of the cyclic list.
        cyclic: all clients in cyclic order, in which those of a label are neighbours.

    Raises ScenarioError if the scenario cannot be used.
    """

    def __init__(self, scenario: Scenario, *, pixels: bool) -> None:
        self.scenario = scenario = expand(scenario)
        self.pixels = pixels
        self.dataset, self.shares = deal_data(scenario, pixels=pixels)
        check_none_empty(self.shares)
        check_targets(scenario, self.dataset)
        self.counts = label_counts(self.dataset.y_train.numpy(), self.shares, self.dataset.n_labels)
        self.test_sets = deal_tests(scenario, self.dataset, self.counts)
        self.label_order = label_order(self.dataset.n_labels, stream(scenario.seed, "label order"))
        self.cyclic = cyclic_clients(self.counts, self.label_order)
        self.fleet = build_fleet(len(self.shares), scenario.seed, scenario.clients, scenario.server, scenario.servers)

    def method(self, device: torch.device | None) -> Method:
        """Make the method with its task, as it is before the first round; without a device, it has no weights.

        Raises ScenarioError if the scenario asks for something that the method cannot do.
        """
        return build_method(
            self.scenario, self.dataset, self.shares, counts=self.counts, fleet=self.fleet, device=device
        )

    @property
    def unheld_labels(self) -> list[str]:
        """Names of the labels of which no client holds a training sample."""
        return [self.dataset.label_names[label] for label in np.flatnonzero(self.counts.sum(axis=0) == 0)]


_last: list[tuple[Scenario, Setup]] = []


def setup_of(scenario: Scenario, *, pixels: bool) -> Setup:
    """Build the setup of `scenario`, or give the one that was built last, if it was for this very object.

    A study of one trial asks three times: to check it, to run it, and to time its typical round again.
    """
    for built_for, setup in _last:
        if built_for is scenario and (setup.pixels or not pixels):
            return setup
    setup = Setup(scenario, pixels=pixels)
    _last[:] = [(scenario, setup)]
    return setup


def forget() -> None:
    """Load and deal data sets anew from now on: since the last study of this process, files may have changed."""
    _last.clear()
    forget_data()
