"""An executor that weighs what is sent, so that declared bytes can be compared with real ones."""

from dataclasses import replace
from math import ceil

import torch
from packing import pack, travelling
from small_world import batch_norm_net, task

from sfl_sim.models.forward_settings import ForwardSettings
from sfl_sim.models.network import Network
from sfl_sim.models.replica import Bundle
from sfl_sim.training.coded import Coded, CodedGradient
from sfl_sim.training.eager import Eager

BF16 = ForwardSettings(autocast=torch.bfloat16)


def content_bytes(content):
    if content is None:
        return 0
    if isinstance(content, torch.Tensor):
        return content.nbytes
    return sum(map(content_bytes, content))


def views_bytes(content):
    """Size of HARMONY's message: a bit for each pair of samples, and a byte for the depth."""
    *views, same = content
    return content_bytes(views) + (0 if same is None else ceil(len(same) / 8) + 1)


def model_bytes(sent):
    if isinstance(sent, Bundle):
        return sum(map(model_bytes, sent.members))
    real = sum(tensor.nbytes for _, tensor in sent.weights.named_tensors())
    if sent.has_velocity:  # which is zero, and travels as such, as long as there is none
        real += sum(tensor.nbytes for tensor in sent.part.views(sent.weights.flat))
    return real


def coded_bytes(sent):
    """Size of a message whose first tensors are coded, and whose others are as they are."""
    if isinstance(sent, CodedGradient):
        return len(travelling(sent))
    content = sent.made_of[0].load()
    packed = sum(len(pack(sent.codec, sent.code(place), shape)) for place, shape in enumerate(sent.shapes))
    if isinstance(content, torch.Tensor):
        return packed
    rest = content[len(sent.shapes) :]
    return packed + (views_bytes(rest) if sent.kind == "features" else content_bytes(rest))


class Audit(Eager):
    """Runs steps and weighs everything that is sent."""

    def __init__(self):
        super().__init__()
        self.weighed = []

    def snapshot(self, payload):
        sent = super().snapshot(payload)
        if isinstance(sent, Coded | CodedGradient):
            real = coded_bytes(sent)
        elif sent.kind == "model":
            real = model_bytes(sent)
        else:
            real = (views_bytes if sent.kind == "features" else content_bytes)(sent.load())
        self.weighed.append((sent.kind, sent.size_bytes, real))
        return sent


def single(forward_settings, **settings):
    """A task in float32 with batch norm and incomplete batches, which is called in the given way."""
    work = task([10, 7], build=batch_norm_net, momentum=0.9, **settings)
    net = Network("small", batch_norm_net, (1, 4, 4), 3).with_settings(forward_settings)
    if work.data.images:
        work.data.images.dtype = torch.float32
    return replace(work, network=net)
