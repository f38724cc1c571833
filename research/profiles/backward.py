"""Time of a backward pass, and of its gradients of weights and of inputs alone, over that of a forward pass.

    python -m research.profiles.backward

Twice: with oneDNN, which torch uses on x86, and with torch's own kernels, which it always has; images lie channels
last, on one thread. Layers and shapes are those of networks for images of 224 pixels, and first layers.
`research/profiles/fit_phones.py` takes over the figure for 1x1 convolutions. Then what layers without products take in
training, over a 3x3 convolution of 64 channels.
"""

import statistics
import time
import warnings
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.pairs import publish

RESULTS = Path(__file__).parent / "results"
REPEATS = 9
LAYERS = {
    "first": [
        (nn.Conv2d(3, 64, 3, padding=1), (8, 3, 32, 32)),
        (nn.Conv2d(3, 32, 3, stride=2, padding=1), (8, 3, 96, 96)),
        (nn.Conv2d(3, 64, 7, stride=2, padding=3), (8, 3, 96, 96)),
    ],
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
        (nn.Conv2d(384, 384, 3, padding=1, groups=384), (8, 384, 14, 14)),
    ],
    "depthwise, 5x5 and 7x7": [
        (nn.Conv2d(240, 240, 5, padding=2, groups=240), (8, 240, 14, 14)),
        (nn.Conv2d(144, 144, 5, stride=2, padding=2, groups=144), (8, 144, 28, 28)),
        (nn.Conv2d(96, 96, 7, padding=3, groups=96), (8, 96, 28, 28)),
    ],
    "dense": [(nn.Linear(384, 1536), (8, 197, 384)), (nn.Linear(1536, 384), (8, 197, 1536))],
    "attention": [(nn.MultiheadAttention(384, 6, batch_first=True), (8, 197, 384))],
}
IMAGE = (8, 64, 32, 32)
CONV = nn.Conv2d(64, 64, 3, padding=1)
WITHOUT_PRODUCTS = {
    "max pool 2x2": nn.MaxPool2d(2), "dropout": nn.Dropout(), "ReLU": nn.ReLU(), "PReLU": nn.PReLU(64),
    "GELU": nn.GELU(), "batch norm": nn.BatchNorm2d(64),
}  # fmt: skip


def seconds(run):
    """Median of the processor time of `run`."""
    taken = []
    for _ in range(REPEATS + 1):
        started_s = time.process_time()
        run()
        taken.append(time.process_time() - started_s)
    return statistics.median(taken[1:])


def passes_s(layer, shape):
    """Times of a forward pass without graph, and of backward passes: both gradients, weights' alone, inputs' alone."""
    x = torch.randn(shape)
    if len(shape) == 4:
        x, layer = (each.to(memory_format=torch.channels_last) for each in (x, layer))
    x.requires_grad_()
    call = (lambda: layer(x, x, x)[0]) if isinstance(layer, nn.MultiheadAttention) else (lambda: layer(x))
    with torch.no_grad():
        forward_s = seconds(call)
    y, weights = call(), list(layer.parameters())
    given, taken_s = torch.ones_like(y), [forward_s]
    for wanted in ([x, *weights], weights, [x]):
        run = partial(torch.autograd.grad, y, wanted, given, retain_graph=True)
        taken_s.append(seconds(run) if wanted else 0.0)
    return taken_s


def over_a_convolution(layer):
    """Time of both passes over that of a convolution's, which is measured before and after."""
    before, own, after = (sum(passes_s(each, IMAGE)[:2]) for each in (CONV, layer, CONV))
    return 2 * own / (before + after)


def main():
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)
    rows = []
    for kernels, one_dnn in (("torch's own", False), ("oneDNN", True)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a switch for GPUs, which is set along
            with torch.backends.mkldnn.flags(enabled=one_dnn):
                for kind, layers in LAYERS.items():
                    taken_s = [passes_s(*layer) for layer in layers]
                    both, weights, inputs = ([each[i] / each[0] for each in taken_s] for i in range(1, 4))
                    rows.append(
                        {
                            "kernels": kernels,
                            "kind": kind,
                            "backward / forward": round(statistics.median(both), 2),
                            "range": [round(min(both), 2), round(max(both), 2)],
                            "weights alone": round(statistics.median(weights), 2),
                            "inputs alone": round(statistics.median(inputs), 2),
                        }
                    )
    publish("backward", rows, RESULTS)
    rows = [
        {"layer": name, "over a convolution": round(over_a_convolution(layer), 2)}
        for name, layer in WITHOUT_PRODUCTS.items()
    ]
    publish("without_products", rows, RESULTS)


if __name__ == "__main__":
    main()
