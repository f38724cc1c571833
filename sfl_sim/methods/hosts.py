"""What the momentum family is made of: a host, which says how clients learn, times what a server makes of it.

A host is SplitFedV1 with a rule that changes every local gradient before a step: none (`fedavg`, which V1 equals),
FedProx's or FedNAR's (METHODS.md section 10). A method adds what its server does: other steps, other averages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.late_steps import LateSteps
from sfl_sim.models.optimisers import CoClipped, GradientRule, Optimiser, Proximal

Host = Literal["fedavg", "fedprox", "fednar"]
SETTINGS: dict[Host, tuple[str, ...]] = {"fedavg": (), "fedprox": ("mu",), "fednar": ("max_norm", "clipping")}


class HostOptions(MethodOptions):
    """`host`: fedavg, fedprox (with `mu`) or fednar (with `max_norm` and `clipping`), whose clients it is used with."""

    host: Host = "fedavg"
    mu: Annotated[float, Field(ge=0)] = 0.01
    max_norm: Annotated[float, Field(gt=0)] = 10.0
    clipping: Literal["part", "exact"] = "part"

    def check(self) -> None:
        """Refuse settings of other hosts."""
        for host, names in SETTINGS.items():
            for name in names:
                if host != self.host and name in self.model_fields_set:
                    problem = f"is a setting of host: {host}"
                    raise ScenarioError(problem, key=f"method.{name}", found=getattr(self, name))

    def rule(self) -> GradientRule | None:
        """What the clients' gradients, and the server's alike, go through before every step."""
        rules: dict[Host, GradientRule | None] = {
            "fedavg": None, "fedprox": Proximal(self.mu), "fednar": CoClipped(self.max_norm)
        }  # fmt: skip
        return rules[self.host]


class Hosted(LateSteps):
    """SplitFedV1 with the host's gradient rule.

    With FedNAR's `exact` clipping, both parts' gradients are clipped as one. The squared norm of part-2's comes with
    the gradient at the cut, so the client steps at once; it tells that of part-1's, and the server steps when it knows,
    while the client goes on.
    """

    Options: ClassVar[type[MethodOptions]] = HostOptions
    options: HostOptions

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.options.check()
        self.is_exact = self.is_late = self.options.host == "fednar" and self.options.clipping == "exact"

    def optimiser(self, round: int) -> Optimiser:
        """With the host's rule."""
        return replace(super().optimiser(round), rule=self.options.rule())


class EqualStepsOptions(HostOptions):
    """With the host's options; `equal_steps`: all clients of a round run as many mini-batches, the mean."""

    equal_steps: bool = True


class EqualSteps(Hosted):
    """A method whose clients run equally many mini-batches (METHODS.md section 10)."""

    Options: ClassVar[type[MethodOptions]] = EqualStepsOptions
    options: EqualStepsOptions

    def n_batches(self, clients: Sequence[int]) -> list[int]:
        """For each client the mean of what they have, rounded, if so wished; who has fewer begins another epoch."""
        own = super().n_batches(clients)
        return [max(1, int(sum(own) / len(own) + 0.5))] * len(own) if self.options.equal_steps else own
