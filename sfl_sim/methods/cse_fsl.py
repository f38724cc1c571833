"""CSE-FSL: an auxiliary head at each client, one part-2, and activations of every h-th mini-batch alone.

Mu and Shen, "Communication and Storage Efficient Federated Split Learning", 2023, and the local-loss method that it
builds on, Han et al., "Accelerating Federated Learning with Split Learning on Locally Generated Losses", 2021
(docs/methods/cse_fsl.md).
"""

from sfl_sim.methods.ahead import Ahead, UploadOptions
from sfl_sim.methods.base import MethodOptions, Task
from sfl_sim.models.replica import Bundle


class CseFsl(Ahead, survives=True):
    """Clients learn from a head's loss, and send some of their activations; nothing comes back from the server."""

    Options = UploadOptions
    options: UploadOptions
    examples = (
        UploadOptions(),
        UploadOptions(upload_every=2, upload="first"),
        UploadOptions(server="copies", aux="linear"),
    )
    neutral = UploadOptions(aux="twin", upload_every=1)

    def __init__(self, task: Task, options: MethodOptions | None = None) -> None:
        super().__init__(task, options)
        self.head = self.new_head(task.cut)
        self.client_model = Bundle([self.part1, self.head])
