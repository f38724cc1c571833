"""CSE-FSL: an auxiliary head at each client, one part-2, and activations of every h-th mini-batch alone.

Mu and Shen, "Communication and Storage Efficient Federated Split Learning", 2023, and the local-loss method that it
builds on, Han et al., "Accelerating Federated Learning with Split Learning on Locally Generated Losses", 2021
(docs/methods/cse_fsl.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from sfl_sim.errors import ScenarioError
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.methods.decoupled import Decoupled, HeadOptions


class CseOptions(HeadOptions):
    """Options of CSE-FSL."""

    upload_every: Annotated[int, Field(ge=1)] = 1
    """Number of mini-batches of which one goes up (h)."""
    upload: Literal["first", "last"] = "last"
    """Which one of them; a rest of fewer than h sends its first one, but no last one."""
    server: Literal["shared", "copies"] = "shared"
    """Part-2: one that all clients train in turn, or a copy for each, averaged every round."""


class CseFsl(Decoupled, survives=True):
    """Clients learn from a head's loss, and send some of their activations; nothing comes back from the server."""

    Options = CseOptions
    options: CseOptions
    examples: ClassVar[Sequence[MethodOptions]] = (
        CseOptions(),
        CseOptions(upload_every=2, upload="first"),
        CseOptions(server="copies", aux="linear"),
    )
    neutral: ClassVar[MethodOptions | None] = CseOptions(aux="twin", upload_every=1)

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        h, fewest = self.options.upload_every, min(map(self.data.n_batches, range(len(self.data))))
        if self.options.upload == "last" and h > fewest:
            problem = "a client has fewer mini-batches a round, so that it never sends any; or set method.upload: first"
            raise ScenarioError(problem, key="method.upload_every", found=h, allowed=f"1 to {fewest}")

    @classmethod
    def serves_in_order(cls, options: MethodOptions) -> bool:
        """Say whether clients take turns at part-2."""
        assert isinstance(options, CseOptions)
        return options.server == "shared"

    def is_sent(self, step: int) -> bool:
        """Say whether the mini-batch is the first, or the last, of its h."""
        h = self.options.upload_every
        return step % h == (0 if self.options.upload == "first" else h - 1)


class LocalLossOptions(CseOptions):
    """Options of the local-loss method: those of CSE-FSL with other defaults."""

    server: Literal["shared", "copies"] = "copies"
    """Part-2: a copy for each client, averaged every round, or one that all train in turn."""


class LocalLoss(CseFsl, survives=True):
    """Clients learn from a head's loss and send all activations; the server trains a copy of part-2 for each."""

    Options = LocalLossOptions
    examples = (LocalLossOptions(),)
    neutral = LocalLossOptions(aux="twin")
