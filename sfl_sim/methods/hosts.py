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
from sfl_sim.training.optimisers import CoClipped, GradientRule, Optimiser, Proximal

Host = Literal["fedavg", "fedprox", "fednar"]


class RuleOptions(MethodOptions):
    """What clients, and the server alike, do to a gradient before every step."""

    @property
    def is_exact(self) -> bool:
        """Whether it takes both parts of a gradient at once."""
        return False

    def rule(self) -> GradientRule | None:
        """Nothing."""
        return None

    def check(self) -> None:
        """Refuse what does not go together."""


class ProxOptions(RuleOptions):
    """`mu`: of fedprox's proximal term (mu/2) ||w - w_round||^2, of both parts."""

    mu: Annotated[float, Field(ge=0)] = 0.01

    def rule(self) -> GradientRule | None:
        """Each part adds its own."""
        return Proximal(self.mu)


class NarOptions(RuleOptions):
    """`max_norm`: to which fednar clips gradient and weight decay. `clipping`: each part by itself, or both exactly as
    one, for a message more with every mini-batch.
    """

    max_norm: Annotated[float, Field(gt=0)] = 10.0
    clipping: Literal["part", "exact"] = "part"

    @property
    def is_exact(self) -> bool:
        """If so wished."""
        return self.clipping == "exact"

    def rule(self) -> GradientRule | None:
        """Clipping; of one part, as long as nobody tells the other's norm."""
        return CoClipped(self.max_norm)


OPTIONS: dict[Host, type[RuleOptions]] = {"fedavg": RuleOptions, "fedprox": ProxOptions, "fednar": NarOptions}


class HostOptions(ProxOptions, NarOptions):
    """`host`: whose clients it goes with, fedavg's (which splitfed_v1 equals), fedprox's or fednar's."""

    host: Host = "fedavg"

    @property
    def is_exact(self) -> bool:
        """As the host."""
        return self.host == "fednar" and self.clipping == "exact"

    def rule(self) -> GradientRule | None:
        """The host's."""
        if self.host == "fedprox":
            return ProxOptions.rule(self)
        return NarOptions.rule(self) if self.host == "fednar" else None

    def check(self) -> None:
        """Refuse settings of other hosts."""
        for host, options in OPTIONS.items():
            for name in options.model_fields if host != self.host else ():
                if name in self.model_fields_set:
                    problem = f"is a setting of host: {host}"
                    raise ScenarioError(problem, key=f"method.{name}", found=getattr(self, name))


class Hosted(LateSteps):
    """SplitFedV1 with the host's gradient rule.

    With FedNAR's `exact` clipping, both parts' gradients are clipped as one. The squared norm of part-2's comes with
    the gradient at the cut, so the client steps at once; it tells that of part-1's, and the server steps when it knows,
    while the client goes on.
    """

    options: RuleOptions

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.options.check()
        self.is_exact = self.is_late = self.options.is_exact

    def optimiser(self, round: int) -> Optimiser:
        """With the host's rule."""
        return replace(super().optimiser(round), rule=self.options.rule())


class EqualStepsOptions(HostOptions):
    """`equal_steps`: all clients of a round run as many mini-batches, the mean."""

    equal_steps: bool = True


class EqualSteps(Hosted):
    """A method whose clients run equally many mini-batches (METHODS.md section 10)."""

    Options: ClassVar[type[MethodOptions]] = EqualStepsOptions
    options: EqualStepsOptions

    def n_batches(self, clients: Sequence[int]) -> list[int]:
        """For each client the mean of what they have, rounded, if so wished; who has fewer begins another epoch."""
        return (
            [self.data.mean_batches(clients)] * len(clients) if self.options.equal_steps else super().n_batches(clients)
        )
