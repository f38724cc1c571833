"""What the simulator costs over a hand-written loop that does the same maths: goal at most 1.05.

    python -m benchmarks.overhead [MODEL ...]

Both sides train the same model on the same random images in the same order, with channels_last, a fused optimiser and
data gathered once an epoch; afterwards the weights are asserted equal to the bit. What remains is the price of the
flows, the clock, the records and the bookkeeping of states.
"""

import statistics
import sys
from copy import deepcopy

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.pairs import alternate, publish, ratio
from sfl_sim.data.batches import ClientData, Images
from sfl_sim.data.datasets import Dataset
from sfl_sim.execute.eager import Eager
from sfl_sim.execute.timing import Timing
from sfl_sim.methods import METHODS, Task
from sfl_sim.models.zoo import MODELS, network
from sfl_sim.rng import stream
from sfl_sim.sim.clock import Simulator
from sfl_sim.sim.orders import fcfs
from sfl_sim.system.fleet import build_fleet

CPU = torch.device("cpu")
CLIENTS, BATCH, LR, MOMENTUM = 4, 64, 0.05, 0.9
WORKLOADS = {  # model: (input shape, cut, samples per client, rounds, pairs)
    "lenet5": ((1, 28, 28), 2, 512, 3, 12),
    "cnn8": ((1, 28, 28), 2, 256, 1, 8),
    "mobilenet_v1": ((3, 32, 32), 4, 128, 1, 8),
}


def random_images(shape, n):
    rng = stream(0, "benchmark images")
    x = torch.from_numpy(rng.integers(0, 256, (n, *shape), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, n))
    half = torch.full((shape[0],), 0.5)
    return Dataset("random", x, y, x[:1], y[:1], tuple("0123456789"), half, half)


class Workload:
    def __init__(self, model, method):
        self.shape, self.cut, samples, self.rounds, self.pairs = WORKLOADS[model]
        self.model, self.method = model, method
        self.dataset = random_images(self.shape, CLIENTS * samples)
        self.net = network(model, self.shape, 10)
        self.shares = np.split(np.arange(CLIENTS * samples), CLIENTS)
        self.fleet = build_fleet(CLIENTS, 0, {}, {"profile": "mobiperf"}, 100.0)
        self.images = Images(self.dataset, CPU, self.net.dtype, True, augment=False)
        self.schedule = self._schedule()

    def _run(self, images, device, executor):
        data = ClientData(self.shares, BATCH, images=images)
        task = Task(self.net, self.cut, data, lr=LR, momentum=MOMENTUM, device=device)
        method = METHODS[self.method](task)
        simulator = Simulator(self.fleet, executor, fcfs)
        for number in range(1, self.rounds + 1):
            simulator.run(method.round(number, range(CLIENTS)), number)
        return method, simulator.take_rows()

    def _schedule(self):
        """The clients in the order in which the server served them, round by round."""
        _, rows = self._run(None, None, Timing())
        jobs = np.sort(rows[(rows["kind"] == b"train") & (rows["node"] == b"server")], order="started_s")
        return [jobs["client"][jobs["round"] == r].tolist() for r in range(1, self.rounds + 1)]

    def simulated(self):
        method, _ = self._run(self.images, CPU, Eager())
        self.found = {k: t for part in method.model() for k, t in part.weights.named_tensors()}

    def plain(self, fused=True):
        """A loop as a careful person writes it: modules, torch.optim, no simulator."""
        (whole,) = self.net.split(seed=0, device=CPU)
        model = MODELS[self.model](self.shape, 10)
        model.load_state_dict(dict(whole.weights.named_tensors()), strict=False)
        model = model.to(memory_format=torch.channels_last)
        part1, part2 = model[: self.cut], model[self.cut :]
        for number, schedule in enumerate(self.schedule, start=1):
            part1s = [deepcopy(part1) for _ in range(CLIENTS)]
            shared = self.method == "splitfed_v2"
            part2s = [part2] * CLIENTS if shared else [deepcopy(part2) for _ in range(CLIENTS)]
            first = [sgd(part, fused) for part in part1s]
            second = [sgd(part2, fused)] * CLIENTS if shared else [sgd(part, fused) for part in part2s]
            batches = [self._batches(client, number) for client in range(CLIENTS)]
            for client in schedule:
                x, y = next(batches[client])
                activations = part1s[client](x)
                leaf = activations.detach().requires_grad_()
                second[client].zero_grad()
                cross_entropy(part2s[client](leaf), y).backward()
                second[client].step()
                first[client].zero_grad()
                activations.backward(leaf.grad)
                first[client].step()
            average(part1, part1s)
            if not shared:
                average(part2, part2s)
        self.expected = model.state_dict()

    def _batches(self, client, number):
        order = stream(0, "batches", client, number, 0).permutation(self.shares[client])
        x, y = self.dataset.x_train[order], self.dataset.y_train[order]
        for start in range(0, len(order), BATCH):
            piece = x[start : start + BATCH].to(torch.float32, memory_format=torch.channels_last)
            yield piece.mul_(1 / 127.5).sub_(1), y[start : start + BATCH]

    def assert_equal(self):
        self.plain(fused=False)  # torch's fused kernel rounds the odd tails of tensors in its own way
        for name, tensor in self.found.items():
            assert torch.equal(tensor, self.expected[name]), f"{self.model} {self.method}: {name} differs"


def sgd(module, fused):
    return torch.optim.SGD(module.parameters(), LR, MOMENTUM, fused=fused)


def average(into, modules):
    with torch.no_grad():
        for name, target in into.state_dict().items():
            if target.is_floating_point():
                total = torch.zeros_like(target)
                for module in modules:
                    total.add_(module.state_dict()[name], alpha=1 / len(modules))
                target.copy_(total)


def main():
    rows = []
    for model in sys.argv[1:] or WORKLOADS:
        for method in ("splitfed_v2", "splitfed_v1"):
            workload = Workload(model, method)
            ours_s, plain_s = alternate(workload.simulated, workload.plain, workload.pairs)
            workload.assert_equal()
            found = ratio(ours_s, plain_s)
            steps = sum(map(len, workload.schedule))
            rows.append(
                {
                    "model": model,
                    "method": method,
                    "simulated / plain": found["median"],
                    "quartiles": found["quartiles"],
                    "plain ms/step": round(1e3 * statistics.median(plain_s) / steps, 2),
                    "weights": "equal to the bit",
                }
            )
            print(rows[-1], file=sys.stderr)
    publish("overhead", rows)


if __name__ == "__main__":
    main()
