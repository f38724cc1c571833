"""Time of an optimiser's step, by element that it reads or writes, on one thread of torch.

    python -m research.profiles.optimisers

An embedding of 50,257 x 768 and a transformer block of GPT-2's size, 128 tokens, with torch's optimisers as they are by
default; sides alternate, in processor time. `update_macs` of profiles/costs/torch.csv is the geometric mean over the
embedding's rows: that is what a price is needed for, since an embedding has no products.
"""

import statistics
import time
from pathlib import Path

import torch
from torch import nn

from benchmarks.pairs import publish
from research.profiles.measure_runtimes import build
from sfl_sim.models.price import price_of
from sfl_sim.training.optimisers import Adam, Sgd

RESULTS = Path(__file__).parent / "results"
REPEATS = 9
DIM, TOKENS, WORDS = 768, 128, 50_257
OPTIMISERS = {
    "SGD": (torch.optim.SGD, {}, Sgd(0.0)),
    "SGD, momentum": (torch.optim.SGD, {"momentum": 0.9}, Sgd(0.0, momentum=0.9)),
    "Adam": (torch.optim.Adam, {}, Adam(0.0)),
}


def main():
    """Write results/optimisers.json, and print the price."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(DIM, 12, 4 * DIM, dropout=0.0, activation="gelu", batch_first=True)
    modules = {
        "embedding": (nn.Embedding(WORDS, DIM), torch.randint(WORDS, (1, TOKENS))),
        "block": (block, torch.rand(1, TOKENS, DIM)),
    }
    network, image = build("mobilenet_v2"), torch.rand(1, 3, 224, 224)
    runs = {"reference": lambda: inference(network, image)}
    for name, (module, x) in modules.items():
        runs[name, ""] = lambda module=module, x=x: _gradients(module, x)
        runs[name, ""]()
        for kind, (make, settings, _) in OPTIMISERS.items():
            runs[name, kind] = make(module.parameters(), lr=1e-9, **settings).step
    s = seconds(runs)
    macs_per_s = price_of(network, image)[0].macs / s["reference"]
    rows = []
    for kind, (*_, ours) in OPTIMISERS.items():
        steps_s = {name: s[name, ""] + s[name, kind] for name in modules}
        for name, (module, _) in modules.items():
            updated = ours.n_moved * sum(weights.numel() for weights in module.parameters())
            own_s = steps_s[name] if name == "embedding" else s[name, kind]  # its gradient is a table of zeros, mostly
            rows.append(
                {
                    "part": name,
                    "optimiser": kind,
                    "MACs an element": round(own_s * macs_per_s / updated, 2),
                    "training step, ms": round(1000 * steps_s[name], 1),
                    "over the block's": round(steps_s[name] / steps_s["block"], 2),
                }
            )
    publish("optimisers", rows, RESULTS)
    of_embedding = [row["MACs an element"] for row in rows if row["part"] == "embedding"]
    print("update_macs", round(statistics.geometric_mean(of_embedding), 1))


def inference(network, image):
    """Run a forward pass without a graph."""
    with torch.no_grad():
        network(image)


def _gradients(module, x):
    module.zero_grad()
    module(x).sum().backward()


def seconds(runs):
    """Median processor time of each of `runs`, which alternate."""
    taken = {name: [] for name in runs}
    for _ in range(REPEATS + 1):
        for name, run in runs.items():
            began_s = time.process_time()
            run()
            taken[name].append(time.process_time() - began_s)
    return {name: statistics.median(each[1:]) for name, each in taken.items()}


if __name__ == "__main__":
    main()
