"""Steps of LoRA in the simulator over a hand-written PyTorch loop of LoRA.

    python -m research.proofs.lora [--quick] [BATCH_SIZE ...]

Both sides train adapters on q and v of the same frozen gpt_small with the same random tokens in the same order, by SGD
on the mean loss over all tokens. The hand-written loop computes W0 x + s B (A x), as most code does; the simulator adds
s B A to W0 and multiplies once. The adapters of both are asserted to agree to 1e-4 after two rounds.

Goal: simulated / plain at most 1.05.
"""

import statistics
import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from benchmarks.options import options
from benchmarks.pairs import alternate, ratio
from benchmarks.workload import CPU, order
from sfl_sim.data.batches import ClientData, Images
from sfl_sim.data.dataset import Dataset
from sfl_sim.methods import METHODS, Task
from sfl_sim.models.lora import Lora, adapt
from sfl_sim.models.network import Network
from sfl_sim.models.zoo import MODELS, network
from sfl_sim.rng import stream
from sfl_sim.scenario.sections import Clients, Server
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import fcfs
from sfl_sim.system.fleet import build_fleet
from sfl_sim.training.executors import Eager
from sfl_sim.training.hardware import keep_freed_memory

LENGTH, VOCABULARY, LR, LORA = 80, 80, 0.1, Lora()


class Unmerged(nn.Module):
    """A frozen linear map with an adapter beside it."""

    def __init__(self, frozen: nn.Linear, a: Tensor, b: Tensor, scale: float) -> None:
        super().__init__()
        self.frozen, self.scale = frozen, scale
        self.A, self.B = (nn.Parameter(factor.detach().clone()) for factor in (a, b))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.frozen(x) + self.scale * linear(linear(x, self.A), self.B)
        return out


class Both:
    """A round of one client on either side."""

    def __init__(self, batch: int, steps: int) -> None:
        n = batch * steps
        tokens = torch.from_numpy(
            stream(0, "benchmark tokens").integers(0, VOCABULARY, (n, LENGTH + 1), dtype=np.uint8)
        )
        names = tuple(map(str, range(VOCABULARY)))
        labels = torch.zeros(n, dtype=torch.int64)
        data = Dataset("random", tokens, labels, tokens[:1], labels[:1], ("all",), token_names=names)
        self.share, self.batch, self.tokens = np.arange(n), batch, tokens
        net = network("gpt_small", (LENGTH,), VOCABULARY, tokens=True, lora=LORA)
        images = Images(data, CPU, net.dtype, False, augment=False)
        task = Task(net, [], ClientData([self.share], batch, images=images), lr=LR, device=CPU)
        self.method = METHODS["fedavg"](task)
        self.clock = EventClock(build_fleet(1, 0, Clients(), Server()), Eager(), fcfs)
        self.model = self._by_hand(net)
        self.rounds = [0, 0]

    def _by_hand(self, net: Network) -> nn.Sequential:
        (whole,) = net.split(seed=0, device=CPU)
        adapted, model = (MODELS["gpt_small"](net.input_shape, VOCABULARY) for _ in range(2))
        adapt(adapted, LORA)
        adapted.load_state_dict(dict(whole.weights.named_tensors()))
        values = adapted.state_dict()
        model.load_state_dict({name: values.get(name, values.get(_original(name))) for name in model.state_dict()})
        model.requires_grad_(False)
        for place in whole.part.adapters:
            layer, name = place.weight.split(".")[:2]
            block = model.get_submodule(layer)
            setattr(block, name, Unmerged(getattr(block, name), values[place.a], values[place.b], place.adapter.scale))
        return model

    def simulated(self) -> None:
        self.rounds[0] += 1
        self.clock.run(self.method.round(self.rounds[0], [0]), self.rounds[0])
        self.clock.take_rows()

    def plain(self) -> None:
        self.rounds[1] += 1
        optimiser = torch.optim.SGD([p for p in self.model.parameters() if p.requires_grad], LR, fused=True)
        tokens = self.tokens[torch.from_numpy(order(self.share, 0, self.rounds[1]))].long()
        for batch in tokens.split(self.batch):
            optimiser.zero_grad()
            scores = self.model(batch[:, :-1])
            cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten()).backward()
            optimiser.step()

    def assert_equal(self) -> None:
        for _ in range(2):
            self.simulated()
            self.plain()
        (whole,) = self.method.model()
        ours = dict(whole.weights.named_tensors())
        for place in whole.part.adapters:
            map_ = self.model.get_submodule(".".join(place.weight.split(".")[:2]))
            torch.testing.assert_close(ours[place.a], map_.A.detach(), rtol=0, atol=1e-4)
            torch.testing.assert_close(ours[place.b], map_.B.detach(), rtol=0, atol=1e-4)
            assert map_.B.any()


def _original(name: str) -> str:
    module, _, tensor = name.rpartition(".")
    return f"{module}.parametrizations.{tensor}.original"


def main() -> None:
    given = options(__doc__, ("4", "16", "64"))
    keep_freed_memory()  # as every run does, for both sides
    rows = []
    for batch in map(int, given.chosen):
        steps = 2 if given.quick else max(2, 128 // batch)
        both = Both(batch, steps)
        both.assert_equal()
        ours_s, plain_s = alternate(both.simulated, both.plain, given.pairs())
        over_plain = ratio(ours_s, plain_s)
        rows.append({"batch": batch, "simulated / plain": over_plain["median"], "quartiles": over_plain["quartiles"],
                     "plain ms/step": round(1e3 * statistics.median(plain_s) / steps, 1)})  # fmt: skip
        print(rows[-1], file=sys.stderr)
    given.publish("lora", rows, Path(__file__).parent / "results")


if __name__ == "__main__":
    main()
