"""Time of a backward pass over that of a forward pass, by kind of layer, on one thread.

    python -m research.profiles.backward

Twice: with oneDNN, which torch uses on x86, and with torch's own kernels, which it always has. Layers and shapes are
those of networks for images of 224 pixels. `research/profiles/fit_phones.py` takes over the figure for 1x1
convolutions.
"""

import statistics
import time
import warnings
from pathlib import Path

import torch
from torch import nn

from benchmarks.pairs import publish

RESULTS = Path(__file__).parent / "results"
REPEATS = 9
LAYERS = {
    "conv": [
        (nn.Conv2d(64, 64, 3, padding=1), (8, 64, 28, 28)),
        (nn.Conv2d(128, 128, 3, padding=1), (8, 128, 14, 14)),
        (nn.Conv2d(64, 128, 3, stride=2, padding=1), (8, 64, 28, 28)),
    ],
    "pointwise": [
        (nn.Conv2d(64, 256, 1), (8, 64, 28, 28)),
        (nn.Conv2d(384, 64, 1), (8, 384, 14, 14)),
        (nn.Conv2d(24, 144, 1), (8, 24, 56, 56)),
    ],
    "grouped": [
        (nn.Conv2d(128, 128, 3, padding=1, groups=16), (8, 128, 28, 28)),
        (nn.Conv2d(128, 128, 3, padding=1, groups=4), (8, 128, 28, 28)),
    ],
    "depthwise": [
        (nn.Conv2d(144, 144, 3, padding=1, groups=144), (8, 144, 28, 28)),
        (nn.Conv2d(240, 240, 5, padding=2, groups=240), (8, 240, 14, 14)),
    ],
    "dense": [(nn.Linear(384, 1536), (8, 197, 384)), (nn.Linear(1536, 384), (8, 197, 1536))],
    "attention": [(nn.MultiheadAttention(384, 6, batch_first=True), (8, 197, 384))],
}


def seconds(run):
    """Median of the processor time of `run`."""
    taken = []
    for _ in range(REPEATS + 1):
        started_s = time.process_time()
        run()
        taken.append(time.process_time() - started_s)
    return statistics.median(taken[1:])


def ratio(layer, shape):
    """Time of the backward pass, for the gradients of input and weights, over that of a forward pass in inference."""
    x = torch.randn(shape, requires_grad=True)
    call = (lambda: layer(x, x, x)[0]) if isinstance(layer, nn.MultiheadAttention) else (lambda: layer(x))
    with torch.no_grad():
        forward_s = seconds(call)
    y = call()
    given, wanted = torch.ones_like(y), [x, *layer.parameters()]
    return seconds(lambda: torch.autograd.grad(y, wanted, given, retain_graph=True)) / forward_s


def main():
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    rows = []
    for kernels, one_dnn in (("torch's own", False), ("oneDNN", True)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a switch for GPUs, which is set along
            with torch.backends.mkldnn.flags(enabled=one_dnn):
                for kind, layers in LAYERS.items():
                    ratios = [ratio(*layer) for layer in layers]
                    rows.append(
                        {
                            "kernels": kernels,
                            "kind": kind,
                            "backward / forward": round(statistics.median(ratios), 2),
                            "range": [round(min(ratios), 2), round(max(ratios), 2)],
                        }
                    )
    publish("backward", rows, RESULTS)


if __name__ == "__main__":
    main()
