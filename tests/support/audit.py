"""An executor that packs what is sent, so that declared bytes can be compared with real ones."""

from dataclasses import replace

import torch
from small_world import batch_norm_net, task

from sfl_sim.models.forward_settings import ForwardSettings
from sfl_sim.models.network import Network
from sfl_sim.training.contents import packed_bytes
from sfl_sim.training.executors import Eager

BF16 = ForwardSettings(autocast=torch.bfloat16)
DEPTH_BYTES = 1
"""HARMONY's message tells its depth, besides a bit for each pair of samples."""


class Audit(Eager):
    """Runs steps, and packs everything that is sent."""

    def __init__(self):
        super().__init__()
        self.weighed = []

    def snapshot(self, payload):
        packed = payload.packed()
        tells_depth = payload.kind == "features" and isinstance(packed, tuple) and packed[-1] is not None
        self.weighed.append((payload.kind, payload.size_bytes, packed_bytes(packed) + tells_depth * DEPTH_BYTES))
        return super().snapshot(payload)


def single(forward_settings, **settings):
    """A task in float32 with batch norm and incomplete batches, which is called in the given way."""
    work = task([10, 7], build=batch_norm_net, momentum=0.9, **settings)
    net = Network("small", batch_norm_net, (1, 4, 4), 3).with_settings(forward_settings)
    if work.data.images:
        work.data.images.dtype = torch.float32
    return replace(work, network=net)
