"""Changes the cuts of an experiment's clients within milliseconds, for walks by the clock alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from sfl_sim.engine.build import build_network
from sfl_sim.engine.estimate import SecondsPerSample
from sfl_sim.engine.experiment import Experiment
from sfl_sim.models.network import Network
from sfl_sim.models.part import Part


def recut(experiment: Experiment, cuts: Sequence[int]) -> None:
    """Let client c of a timing-only `experiment` hold the layers 1 to `cuts[c]`, in all rounds.

    Raises ScenarioError if the method does not allow these cuts.
    """
    method, task = experiment.method, experiment.method.task
    network = task.network
    if network.lora and not method.trains_part1:  # whose adapters lie behind the cut
        network = build_network(experiment.scenario, experiment.dataset, above=max(cuts))
    if not isinstance(network, _Unweighted):
        network = _Unweighted(network)
    sample_s = SecondsPerSample(network, cuts, experiment.scenario.train.batch_size, experiment.fleet, task.wire)
    elsewhere = replace(task, network=network, cuts=list(cuts), round_cuts=(), sample_s=sample_s)
    experiment.replace_method(type(method)(elsewhere, method.options))


class _Unweighted(Network):
    """A network whose parts never hold weights: they share their layers, and equal parts are one.

    Making the layers of a deep network takes tens of milliseconds, and there are dozens of parts if every client has a
    cut of its own.
    """

    def __init__(self, network: Network) -> None:
        vars(self).update(vars(network))
        self._layers = super()._skeleton()
        self._parts: dict[tuple[int, int], Part] = {}

    def part(self, start: int, stop: int) -> Part:
        """Return the part of the layers `start` to `stop`, made once."""
        if (start, stop) not in self._parts:
            self._parts[start, stop] = super().part(start, stop)
        return self._parts[start, stop]

    def _skeleton(self) -> nn.Sequential:
        return self._layers
