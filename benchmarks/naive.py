"""Gain of the simulator over the plain loop of papers' code: goal at least 1.5 (mobilenet_v1).

    python -m benchmarks.naive [--quick] [MODEL ...]

The naive side is usual in repositories of federated and split learning: a DataLoader over a Dataset that transforms
every sample by itself, a deepcopy of the model for every client and round, an average per key of the state dicts, one
torch.optim.SGD per client, torch's default layout and allocator. Each side runs in a process of its own,
and their rounds alternate. Data, order and maths are the same: once, in float64, the weights are asserted equal up to
rounding, so the gain costs no accuracy.
"""

import statistics
import sys

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from benchmarks.child import Child, rounds
from benchmarks.options import options
from benchmarks.pairs import alternate, ratio
from benchmarks.plain import Batches, Plain
from benchmarks.workload import MODELS, Simulated, Workload
from sfl_sim.training.hardware import keep_freed_memory

METHODS = ("fedavg", "splitfed_v2")
TOLERANCE = 1e-6
"""Largest difference of float64 weights, relative to the largest weight: batch norm greatly amplifies rounding."""


class Share(Dataset[tuple[Tensor, Tensor]]):
    """Data set of a client's samples in a given order, transformed one by one as torchvision's data sets do."""

    def __init__(self, x: Tensor, y: Tensor, order: list[int]) -> None:
        self.images = x.permute(0, 2, 3, 1).squeeze(3).numpy()
        self.y = y
        self.order = order
        channels = x.shape[1]
        half = [0.5] * channels
        self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize(half, half)])

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, item: int) -> tuple[Tensor, Tensor]:
        index = self.order[item]
        return self.transform(Image.fromarray(self.images[index])), self.y[index]


def loaded(workload: Workload, client: int, round: int) -> Batches:
    """Make a client's mini-batches of a round with a DataLoader."""
    order = workload.order(client, round).tolist()
    return iter(DataLoader(Share(workload.dataset.x_train, workload.dataset.y_train, order), workload.batch))


def naive(workload: Workload, rounds: int) -> Plain:
    return Plain(workload, workload.schedule(rounds), loaded, torch.contiguous_format, fused=False)


def difference(model: str, method: str, quick: bool) -> float:
    """Compute the largest difference of weights after a round in float64, relative to the largest weight."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # ToTensor's
    try:
        workload = Workload(model, method, quick, torch.float64)
        ours, theirs = Simulated(workload), naive(workload, 1)
        ours.round()
        theirs.round()
    finally:
        torch.set_default_dtype(usual)
    expected = theirs.model.state_dict()
    found = ours.weights()
    largest = max(float(tensor.abs().max()) for tensor in found.values())
    return max(float((tensor - expected[name]).abs().max()) for name, tensor in found.items()) / largest


def child(side: str, workload: Workload, n_rounds: int) -> None:
    if side == "ours":
        keep_freed_memory()
    runner = Simulated(workload) if side == "ours" else naive(workload, n_rounds)
    for _ in rounds():
        runner.round()


def measure(model: str, method: str, quick: bool, pairs: int) -> dict[str, object]:
    apart = difference(model, method, quick)
    assert apart < TOLERANCE, f"{model} {method}: the weights differ by {apart:.1g}"
    arguments = (model, method, int(quick), pairs + 1)
    with (
        Child("benchmarks.naive", "--side", "naive", *arguments) as theirs,
        Child("benchmarks.naive", "--side", "ours", *arguments) as ours,
    ):
        naive_s, ours_s = alternate(theirs.round, ours.round, pairs)
    gain = ratio(naive_s, ours_s)
    return {
        "model": model,
        "method": method,
        "naive / simulated": gain["median"],
        "quartiles": gain["quartiles"],
        "simulated s/round": round(statistics.median(ours_s), 3),
        "difference in float64": f"{apart:.1g}",
    }


def main() -> None:
    if sys.argv[1:2] == ["--side"]:
        side, model, method, quick, n_rounds = sys.argv[2:]
        child(side, Workload(model, method, bool(int(quick))), int(n_rounds))
        return
    given = options(__doc__, [model for model in MODELS if model != "resnet18"])
    rows = []
    for model in given.chosen:
        for method in METHODS:
            rows.append(measure(model, method, given.quick, given.pairs()))
            print(rows[-1], file=sys.stderr)
    given.publish("naive", rows)


if __name__ == "__main__":
    main()
