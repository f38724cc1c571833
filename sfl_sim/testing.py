"""Checks of a method, on small networks and few clients: what sfl-sim's own tests run over all its methods.

`check_method(MyMethod)` says in one line each what does not hold. A check is a function of a `Case` and a `World`: it
raises AssertionError, and passes if it does not concern the case.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import inf
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves

from sfl_sim.data.batches import ClientData, Images
from sfl_sim.data.dataset import Dataset
from sfl_sim.data.partition import label_counts
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS, Method, MethodOptions, Task
from sfl_sim.methods.wire import Wire
from sfl_sim.metrics.busy import busy
from sfl_sim.models.lora import Lora
from sfl_sim.models.network import Network
from sfl_sim.models.on_nan import OnNan
from sfl_sim.models.replica import Beforehand, through
from sfl_sim.ops import On, Step, Value
from sfl_sim.rng import stream
from sfl_sim.scenario.sections import Clients, Server, TierSection
from sfl_sim.sim.clock import Clock
from sfl_sim.sim.dropouts import Dropouts, LostPolicy
from sfl_sim.sim.event_clock import EventClock, Queueing
from sfl_sim.sim.operations import Executor
from sfl_sim.sim.orders import OF_RUNS, ORDERS
from sfl_sim.store import places
from sfl_sim.system.fleet import Fleet, build_fleet
from sfl_sim.system.presence import Presence
from sfl_sim.training.alternatives import Alternatives, replicas_by_name
from sfl_sim.training.codecs import Fp16, TopK
from sfl_sim.training.contents import dump, load, packed_bytes
from sfl_sim.training.executors import Eager, Timing
from sfl_sim.training.optimisers import Sgd
from sfl_sim.training.process import own_process
from sfl_sim.training.replay import Image, Replay
from sfl_sim.training.steps import Average

CPU = torch.device("cpu")
N_LABELS = 3
ROUNDING = 1e-10
"""Largest difference of numbers in float64 that are equal but for rounding."""
NUMBER_BYTES = 4
"""Bytes in a message of what is no tensor, such as a depth."""
LONG_S = 1e6


def mlp(shape: Sequence[int], n_labels: int) -> nn.Sequential:
    """Make three layers without batch norm."""
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 8), nn.Tanh()),
        nn.Sequential(nn.Linear(8, 6), nn.Tanh()),
        nn.Linear(6, n_labels),
    )


def batch_norm_net(shape: Sequence[int], n_labels: int) -> nn.Sequential:
    """Make a small convolutional network with batch norm."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(shape[0], 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()),
        nn.Linear(4 * shape[1] * shape[2], n_labels),
    )


def images(n: int, seed: int = 0) -> Dataset:
    """Draw 4x4 images of three labels as a data set."""
    rng = stream(seed, "test images")
    x = torch.from_numpy(rng.integers(0, 256, (n, 1, 4, 4), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, N_LABELS, n))
    half = torch.full((1,), 0.5)
    return Dataset("random", x, y, x[:9], y[:9], ("a", "b", "c"), half, half)


def task(
    samples: Sequence[int] = (12, 8, 4),
    batch_size: int = 4,
    build: Callable[[Sequence[int], int], nn.Sequential] = mlp,
    cut: int = 1,
    cuts: Sequence[int] | None = None,
    local_epochs: int = 1,
    device: torch.device | None = CPU,
    seed: int = 0,
    lora: Lora | None = None,
    **settings: Any,
) -> Task:
    """Make a task in float64 whose client c holds `samples[c]` random images; `cuts` are those of the clients."""
    net = Network("small", build, (1, 4, 4), N_LABELS, torch.float64, lora=lora)
    shares = np.split(np.arange(sum(samples)), np.cumsum(samples)[:-1])
    dataset = images(sum(samples))
    source = device and Images(dataset, device, net.dtype, net.channels_last, augment=False)
    data = ClientData(shares, batch_size, local_epochs, seed=seed, images=source or None)
    settings = {
        "cuts": cuts or [cut] * len(samples),
        "lr": 0.1,
        "label_names": dataset.label_names,
        "label_counts": label_counts(dataset.y_train.numpy(), shares, N_LABELS),
        **settings,
    }
    return Task(network=net, data=data, seed=seed, device=device, **settings)


Rates = float | Sequence[float]


def fleet(
    n: int,
    macs_per_s: Rates = 1e6,
    uplink_bps: Rates = 1e6,
    downlink_bps: Rates = 1e6,
    speedup: float = 100.0,
    servers: Mapping[str, Mapping[str, Any]] | None = None,
    **network: Any,
) -> Fleet:
    """Make `n` clients with these rates, and tiers of servers, whose sections are given by name."""
    links = {"uplink_bps": uplink_bps, "downlink_bps": downlink_bps, **network}
    clients = Clients.model_validate({"compute": {"macs_per_s": macs_per_s}, "network": links})
    tiers = {name: TierSection.model_validate(section) for name, section in (servers or {}).items()}
    return build_fleet(n, 0, clients, Server(speedup=speedup), tiers)


class MethodRun(NamedTuple):
    """A method after some rounds, its clock, and the rows of all operations."""

    method: Method
    clock: EventClock
    rows: NDArray[np.void]


def simulate(
    method: Method,
    rounds: int | Sequence[Sequence[int]] = 2,
    order: str = "fcfs",
    world: Fleet | None = None,
    executor: Executor | None = None,
    **settings: Any,
) -> MethodRun:
    """Run the setup and some rounds, of all clients or of those of each round, with settings of clock and queue."""
    everybody = range(len(method.data))
    executor = executor or (Eager() if method.task.device else Timing())
    of_queue: dict[str, Any] = {
        key: settings.pop(key) for key in ("burst", "max_wait_s", "recorded") if key in settings
    }
    queueing = Queueing((ORDERS | OF_RUNS)[order], settings.pop("workers", float("inf")), **of_queue)
    clock = EventClock(world or fleet(len(everybody)), executor, queueing, **settings)
    clock.run(method.setup(), 1, in_round=False)
    rows = []
    for number, clients in enumerate([everybody] * rounds if isinstance(rounds, int) else rounds, start=1):
        clock.run(method.round(number, clients), number)
        rows.append(clock.take_rows())
        if method.looks_at_times:
            method.task.seen.learn(number, *busy(rows[-1]))
    executor.finish()
    return MethodRun(method, clock, np.concatenate(rows) if rows else clock.take_rows())


def tensors(method: Method) -> dict[str, Tensor]:
    """Return the global model's numbers, in the order of the layers whatever the cut; of alternatives by name."""
    found: dict[str, Tensor] = {}
    for part in method.model():
        alternatives = part.replicas if isinstance(part, Alternatives) else {"": part}
        for name, replica in alternatives.items():
            prefix = f"{name}." if len(alternatives) > 1 else ""
            found |= {prefix + key: tensor for key, tensor in replica.weights.named_tensors()}
    return found


def unsplit(work: Task) -> nn.Module:
    """Return the network that is not split, a plain module with the initial weights."""
    (whole,) = work.split()
    net = work.network.build(work.network.input_shape, work.network.n_labels).double()
    net.load_state_dict(dict(whole.weights.named_tensors()), strict=False)
    return net


def distance(one: Method, other: Method) -> float:
    """Return the largest difference between the numbers of two methods' global models."""
    a, b = tensors(one), tensors(other)
    if a.keys() != b.keys():
        return inf
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def bits(method: Method) -> dict[str, bytes]:
    """Return the global model's numbers, to be compared to the bit."""
    return {name: tensor.cpu().numpy().tobytes() for name, tensor in tensors(method).items()}


@dataclass(frozen=True)
class Case:
    """A method with some of its options."""

    kind: type[Method]
    options: MethodOptions

    def __str__(self) -> str:
        return f"{self.kind.__name__} {self.options.model_dump(exclude_unset=True) or ''}".rstrip()

    def method(self, work: Task) -> Method:
        """Make the method for a task."""
        return self.kind(work, self.options)

    @property
    def neutrally(self) -> Case:
        """The method with its neutral options."""
        assert self.kind.neutral
        return Case(self.kind, self.options.model_copy(update=self.kind.neutral.model_dump(exclude_unset=True)))


def cases_of(kind: type[Method]) -> list[Case]:
    """List the cases that a method names itself."""
    return [Case(kind, options) for options in kind.examples or (kind.Options(),)]


@dataclass(frozen=True)
class World:
    """A few clients and their system; usually three of different speeds, of which one has most to do.

    Attributes:
        macs_per_s, uplink_bps, downlink_bps, speedup: rates of the `fleet`.
        order, workers: of the server.
        rounds: how many, or the participants of each.
        settings: of the `task`; it has momentum, which some methods need.
    """

    samples: Sequence[int] = (12, 8, 4)
    macs_per_s: Rates = (1e5, 3e5, 7e5)
    uplink_bps: Rates = (1e5, 4e4, 9e4)
    downlink_bps: Rates = (3e5, 2e5, 1e5)
    speedup: float = 3.0
    order: str = "fcfs"
    workers: float = 1
    rounds: int | Sequence[Sequence[int]] = 2
    settings: Mapping[str, Any] = field(default_factory=dict)

    def work(self, device: torch.device | None = CPU, **settings: Any) -> Task:
        """Make the task."""
        settings = {"momentum": 0.9, "sample_s": self._sample_s, **self.settings, **settings}
        return task(self.samples, device=device, **settings)

    def _sample_s(self, client: int) -> float:
        return 1e3 / (self.macs_per_s[client] if isinstance(self.macs_per_s, Sequence) else self.macs_per_s)

    @property
    def fleet(self) -> Fleet:
        """The clients' devices and links."""
        rates = (self.macs_per_s, self.uplink_bps, self.downlink_bps)
        compute, up, down = (list(rate) if isinstance(rate, Sequence) else rate for rate in rates)
        return fleet(len(self.samples), compute, up, down, self.speedup)

    def run(
        self,
        case: Case,
        rounds: int | Sequence[Sequence[int]] | None = None,
        executor: Executor | None = None,
        device: torch.device | None = CPU,
        presence: Sequence[Presence] | None = None,
        lost: LostPolicy = "wait",
        deadline_s: float = inf,
        wanted: float = inf,
        **settings: Any,
    ) -> MethodRun:
        """Run these rounds or the usual ones; clients may be lost as in `Dropouts`. `settings` are of the task."""
        method, world = case.method(self.work(device, **settings)), replace(self.fleet, presence=presence)
        dropouts = Dropouts(lost, presence, deadline_s, wanted)
        rounds = self.rounds if rounds is None else rounds
        return simulate(method, rounds, self.order, world, executor, workers=self.workers, dropouts=dropouts)


USUAL = World()
EVERYBODY, SURVIVORS, LOST = (0, 1, 2, 3), (0, 1, 2), 3
LOSSY = World(
    (4, 16, 4, 12), (1e3, 2e3, 3e3, 2e3), 2e4, (4e4, 2e4, 3e4, 5e4), 20.0, "cyclic", settings={"local_epochs": 2}
)
"""Four clients, of which some are going to be lost."""


def _expect(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)


def _trait(method: Method, name: str, found: bool, what: str) -> None:
    """Expect a trait to be what a run has shown."""
    said = getattr(method, name)
    _expect(
        said == found, f"{name} is {said}, but {what}" if found else f"{name} is {said}, but it is not so that {what}"
    )


class Watching(Eager):
    """Runs steps, and shows what is sent, and what operations have given."""

    def __init__(
        self,
        sent: Callable[[Value], object] = lambda payload: None,
        done: Callable[[On, Any], object] = lambda op, content: None,
    ) -> None:
        super().__init__()
        self.sent = sent
        self.done = done

    def snapshot(self, payload: Value) -> Value:
        self.sent(payload)
        return super().snapshot(payload)

    def run(self, op: On) -> Any:
        content = super().run(op)
        self.done(op, content)
        return content


def check_repeatable(case: Case, world: World = USUAL) -> None:
    """Expect two runs to learn the same numbers to the bit."""
    one, other = (world.run(case) for _ in range(2))
    _expect(bits(one.method) == bits(other.method), "two runs with the same seed learn different numbers")


def check_timing_only(case: Case, world: World = USUAL) -> None:
    """Expect a run that does not train to have the timeline of the one that does, unless flows read numbers."""
    trained, timed = (world.run(case, device=device) for device in (CPU, None))
    if not trained.clock.records.take_reads():
        same = trained.rows.tobytes() == timed.rows.tobytes()
        _expect(same, "a run that does not train has another timeline: what flows do depends on tensors")


def check_array_clock(case: Case, world: World = USUAL) -> None:
    """Expect the rounds of a `regular` method, planned as its first one, to be those of the event loop."""
    if not case.kind.regular:
        return
    method = case.method(world.work(None))
    clock = Clock(EventClock(world.fleet, Timing(), Queueing(ORDERS[world.order], world.workers)))
    clock.run(method.setup, 1, in_round=False)
    for number in (1, 2):
        clock.run(partial(method.round, number, range(len(world.samples))), number, like="all")
    events = world.run(case, device=None)
    same = clock.events.take_rows().tobytes() == events.rows.tobytes()
    _expect(same and clock.now_s == events.clock.now_s, "is not regular: its rounds issue different operations")


def check_resume(case: Case, world: World = USUAL) -> None:
    """Expect a run to go on from an image of its memory, once the rounds before were walked without computing."""
    memory, steps = Replay(Eager()), list[On]()
    whole = world.run(case, executor=memory)
    image = Image(**load(dump(vars(memory.image()))))
    again = Replay(Watching(done=lambda op, content: steps.append(op)))
    again.walk(image)
    resumed = world.run(case, executor=again)
    _expect(not steps and not again.is_walking, "cannot be resumed: the walk to the image runs steps")
    for method, clock, _ in (whole, resumed):
        clock.run(method.round(3, range(len(world.samples))), 3)
    _expect(bits(whole.method) == bits(resumed.method), "cannot be resumed: numbers of training live outside of states")


class Weighing(Watching):
    """Notes the tensors of all messages, and what these declare.

    Attributes:
        messages: kind, declared bytes, and the tensors' bytes.
        tensors: by kind.
    """

    def __init__(self) -> None:
        super().__init__(sent=self._weigh)
        self.messages: list[tuple[str, int, int]] = []
        self.tensors: dict[str, list[Tensor]] = {}

    def _weigh(self, payload: Value) -> None:
        packed = payload.packed()
        self.messages.append((payload.kind, payload.size_bytes, packed_bytes(packed)))
        leaves = tree_leaves(packed, is_leaf=lambda leaf: isinstance(leaf, Beforehand))
        self.tensors.setdefault(payload.kind, []).extend(leaf for leaf in leaves if isinstance(leaf, Tensor))


def check_bytes(case: Case, world: World = USUAL) -> None:
    """Expect messages to be as large as declared when they are packed, but for `NUMBER_BYTES` of what is no tensor."""
    weighing = Weighing()
    world.run(case, executor=weighing, build=batch_norm_net)
    wrong = {each for each in weighing.messages if not 0 <= each[1] - each[2] <= NUMBER_BYTES}
    told = ", ".join(f"{kind} of {n} as {declared}" for kind, declared, n in sorted(wrong))
    _expect(not wrong, f"declares other bytes than messages have: {told}")


def check_messages(case: Case, world: World = USUAL) -> None:
    """Expect gradients, models and labels to travel as the method's traits say."""
    weighing = Weighing()
    method, _, rows = world.run(case, executor=weighing)
    links = places.DOWNLINK, places.UPLINK
    down, up = (set(rows["kind"][places.at(rows["node"], link) & (rows["bytes"] > 0)]) for link in links)
    _trait(method, "gets_gradients", b"gradients" in down, "gradients come down to clients")
    _trait(method, "uploads_model", b"model" in up, "clients upload a model")
    if method.is_split:
        are_labels = (one.dtype == torch.int64 for tensors in weighing.tensors.values() for one in tensors)
        _trait(method, "sends_labels", any(are_labels), "labels are sent")


def check_deployed(case: Case, world: World = USUAL) -> None:
    """Expect each client to have a model with which it answers, cut and with an exit as the method's traits say."""
    method, clock, _ = world.run(case)
    clock.run(method.finish(), 2, in_round=False)
    with suppress(ScenarioError):  # several models answer at once
        _trait(method, "has_exits", method.deployed(0).head is not None, "clients have an exit")
    front, back = method.sides(0)
    x = torch.zeros(2, *method.task.network.input_shape, dtype=torch.float64)
    _expect(through([*front, *back], x, training=False).shape == (2, N_LABELS), "sides give no answer")
    if method.is_split:
        begun = method.task.network.split(method.task.cuts[0], seed=method.task.seed, device=CPU)[0].weights.flat
        trained = torch.cat([member.weights.flat for part in front for member in part.members])
        _trait(method, "trains_part1", not torch.equal(begun, trained), "clients train part-1")


def check_time(case: Case) -> None:
    """Expect what is learned to depend on speeds and on the order of service exactly if the trait says so."""
    macs_per_s, up, down = [1e5, 5e4, 2e4], [2e4, 1e4, 5e3], [8e4, 5e4, 2e4]
    fast_first = World((9, 8, 9), macs_per_s, up, down)
    slow_first = World((9, 8, 9), macs_per_s[::-1], up[::-1], down[::-1])
    cyclic = replace(fast_first, order="cyclic_reverse")
    runs = [world.run(case) for world in (fast_first, slow_first, cyclic)]
    differs = any(bits(run.method) != bits(runs[0].method) for run in runs)
    _trait(runs[0].method, "depends_on_time", differs, "clients of other speeds, or another order, learn other numbers")
    follows = runs[2].rows.tobytes() != runs[0].rows.tobytes()
    _trait(runs[0].method, "follows_order", follows, "another order gives other times")


def check_ignored(case: Case, world: World = USUAL) -> None:
    """Expect keys that reach the method to change what is learned, unless it says that it ignores them."""
    usual, part = [(0, 1), (1, 2)], [(1, 2), (0, 1)]
    settings: dict[str, tuple[World, Mapping[str, Any]]] = {
        "clients.choice": (replace(world, rounds=part), {}),
        "train.agg_weights": (replace(world, rounds=usual), {"uniform_weights": True}),
    }
    before = bits(replace(world, rounds=usual).run(case).method)
    for key, (other, changes) in settings.items():
        ignored = bits(other.run(case, **changes).method) == before
        said = key in case.kind.trait("ignores", case.options)
        _expect(ignored == said, f"{key} has {'no' if ignored else 'an'} effect, but `ignores` says otherwise")


def check_idea(case: Case, world: World = USUAL) -> None:
    """Expect a variant of another method to learn other numbers, unless `idea_off` says why it does not."""
    if not case.kind.like:
        return
    host = METHODS[case.kind.like]
    for options, momentum in product((case.kind.Options(), case.kind.neutral), (0.9, 0.0)):
        if options is None:
            continue
        shared = {key: value for key, value in options if key in host.Options.model_fields}
        with suppress(ScenarioError):  # it may need momentum
            method = world.run(Case(case.kind, options), momentum=momentum).method
            alike = distance(method, world.run(Case(host, host.Options(**shared)), momentum=momentum).method) < ROUNDING
            found = f"learns {'what' if alike else 'other numbers than'} {case.kind.like}"
            _expect(alike == bool(method.idea_off), f"idea_off is {method.idea_off!r}, but with {options} it {found}")


def check_second_worker(case: Case) -> None:
    """Expect a second worker at a slow server to save time, unless all clients train one model there."""
    world = World((20, 12, 8), speedup=1e-3)
    one, two = (replace(world, workers=workers).run(case, rounds=1, device=None) for workers in (1, 2))
    if one.method.is_split:
        is_idle = one.clock.now_s == two.clock.now_s
        _trait(one.method, "shares_server_model", is_idle, "a second worker at the server saves no time")


def check_neutral(case: Case) -> None:
    """Expect one client, with neutral options, to learn what SGD learns on the network that is not split."""
    if case.kind.neutral is None:
        return
    for cut in (1, 2):
        world = World((14,), 1e5, 1e5, 1e5, settings={"weight_decay": 1e-3, "local_epochs": 2, "lr_decay": 0.5})
        method, *_ = world.run(case.neutrally, rounds=3, cut=cut)
        expected, found = _centralised(method.task, 3), tensors(method)
        apart = max(float((expected[name] - tensor).abs().max()) for name, tensor in found.items())
        _expect(
            apart < ROUNDING, f"is not SGD for one client with cut {cut} (`neutral`): numbers differ by {apart:.2g}"
        )


def _centralised(work: Task, rounds: int) -> dict[str, Tensor]:
    """Return what plain SGD makes of client 0's mini-batches, without anything of the simulator."""
    net = unsplit(work)
    for number in range(1, rounds + 1):
        usual = work.optimiser(number)
        assert isinstance(usual, Sgd)
        sgd = torch.optim.SGD(net.parameters(), usual.lr, usual.momentum, weight_decay=usual.weight_decay)
        for batch in work.data.batches(0, number):
            x, y = batch.load()
            sgd.zero_grad()
            cross_entropy(net(x), y).backward()  # type: ignore[no-untyped-call]
            sgd.step()
    return net.state_dict()


def check_optimisers(case: Case) -> None:
    """Expect optimisers to be new in every round: with one step in each, momentum is irrelevant."""
    world = World((4,), 1e5, 1e5, 1e5)  # alone, since several clients may make several steps at the server
    method, *_ = world.run(case, rounds=0)
    if any(replica.has_velocity for replica in replicas_by_name(method.model()).values()):
        return  # it goes on with the average
    with_momentum, without = (world.run(case, momentum=momentum).method for momentum in (0.9, 0.0))
    _expect(distance(with_momentum, without) < ROUNDING, "optimisers are not new in every round")


def check_codecs(case: Case, world: World = USUAL) -> None:
    """Expect codecs to make messages smaller, and one that keeps everything to change nothing, unless it is refused."""
    method, _, rows = world.run(case)
    sent = {"up": method.is_split, "down": method.gets_gradients, "update": method.uploads_model}
    ways = [way for way, is_sent in sent.items() if is_sent]
    codecs: list[dict[str, Any]] = [dict.fromkeys(ways, codec) for codec in (Fp16(), TopK(keep=1.0))]
    try:
        small, whole = (world.run(case, wire=Wire(**codec)) for codec in codecs)
    except ScenarioError:
        return
    for way in ways:
        coded, plain = (found["bytes"][_goes(found, way)].sum() for found in (small.rows, rows))
        _expect(coded < plain, f"does not use its wire: wire.{way} codes no message")
    apart = distance(whole.method, method)
    _expect(apart < ROUNDING, f"codecs that keep everything change numbers by {apart:.2g}")


def _goes(rows: NDArray[np.void], way: str) -> NDArray[np.bool_]:
    """Select the messages that a codec of this way codes."""
    link = places.DOWNLINK if way == "down" else places.UPLINK
    selected: NDArray[np.bool_] = places.at(rows["node"], link) & ((rows["kind"] == b"model") == (way == "update"))
    return selected


def check_adapters(case: Case, world: World = USUAL) -> None:
    """Expect adapters to be trained and nothing else; their products are averaged if models only are."""
    for aggregate in ("separate", "ffa", "svd"):
        lora = Lora(rank=2, targets=("0.1", "1.0", "2"), aggregate=aggregate)
        kinds: set[type[Step]] = set()
        if aggregate == "svd" and not case.kind.only_averages:
            continue

        def note(op: On, content: Any, kinds: set[type[Step]] = kinds) -> None:
            if op.step.aggregates:
                kinds.add(type(op.step))

        method, *_ = world.run(case, executor=Watching(done=note), lora=lora)
        (initial,) = method.task.split()
        before, after = dict(initial.weights.named_tensors()), tensors(method)
        moved = {name[-2:] for name in before if name in after and not torch.equal(after[name], before[name])}
        _expect(bool(moved) and moved <= {".A", ".B"}, f"trains {sorted(moved)} with adapters (lora)")
        _expect(not case.kind.only_averages or kinds == {Average}, "only_averages, but it aggregates otherwise")


def check_on_nan(case: Case, world: World = USUAL) -> None:
    """Expect updates by samples that are infinite to be left out, if a run shall leave such out."""
    on_nan, work = OnNan(skips=True), world.work()
    pixels = work.data.images
    assert pixels
    pixels.x = pixels.x.float()
    pixels.x[: world.samples[0]] = inf
    method, *_ = simulate(case.method(work), 3, world.order, world.fleet, Eager(on_nan), workers=world.workers)
    finite = all(bool(tensor.isfinite().all()) for tensor in tensors(method).values())
    _expect(finite and on_nan.left_out > 0, "does not leave out updates that are not finite (train.on_nan: skip)")


def check_current(case: Case, world: World = USUAL) -> None:
    """Expect the model within a round, if there is one, to be the global one at its end; looking changes nothing."""
    looked = case.method(world.work())
    try:
        looked.current()
    except ScenarioError:
        return

    def look(op: On) -> None:
        looked.current()

    clock = EventClock(world.fleet, Eager(), Queueing(ORDERS[world.order], world.workers))
    clock.after_job.append(look)
    clock.run(looked.setup(), 1, in_round=False)
    for number in (1, 2):
        clock.run(looked.round(number, range(len(world.samples))), number)
    _expect(bits(looked) == bits(world.run(case).method), "`current` changes what is learned")
    pairs = zip(looked.current(), replicas_by_name(looked.model()).values(), strict=True)
    apart = max(float((now.weights.flat - last.weights.flat).abs().max()) for now, last in pairs)
    _expect(apart < ROUNDING, "`current` is not the global model when the round has ended")


def gone_at(leaves_s: Mapping[int, float], for_s: float = LONG_S) -> list[Presence]:
    """Make the presence of `EVERYBODY`, of whom some go away, each at its instant and for a time."""
    always = Presence([(0.0, 1.0)], 1.0)
    away = {c: Presence([(0.0, at_s), (at_s + for_s, 2 * LONG_S)], 2 * LONG_S) for c, at_s in leaves_s.items()}
    return [away.get(c, always) for c in EVERYBODY]


def instant(rows: NDArray[np.void], client: int, share: float) -> float:
    """Return the instant at which this share of a client's part of a round has passed: of all but the server's."""
    own = rows[(rows["client"] == client) & ~places.at(rows["node"], places.SERVER)]
    begin_s, end_s = own["requested_s"].min(), own["ended_s"].max()
    return float(begin_s + share * (end_s - begin_s))


def check_lost(case: Case, world: World = LOSSY) -> None:
    """Expect a client that is lost, even if it returns at once, to leave nothing behind, or not, as a trait says."""
    rows = _second_round(case, world)
    if rows is None:
        return
    away = (gone_at({LOST: instant(rows, LOST, share)}, for_s=0.1) for share in (0.05, 0.4, 0.9))
    lost = (world.run(case, [EVERYBODY] * 3, presence=presence, lost="drop").method for presence in away)
    never = world.run(case, [EVERYBODY, SURVIVORS, EVERYBODY]).method
    forgets = all(bits(method) == bits(never) for method in lost)
    _trait(never, "forgets_lost", forgets, "a lost client leaves nothing behind")


def check_lost_early(case: Case) -> None:
    """Expect a client that is lost before it has done anything not to be missed."""
    alike = replace(LOSSY, samples=(8, 8, 8, 8))  # since some take as many steps as all have on average
    rows = _second_round(case, alike)
    if rows is None or not case.kind.knows_deadlines:
        return
    away = gone_at({LOST: rows["requested_s"].min() + 0.01})
    lost, never = (alike.run(case, [EVERYBODY, left], presence=away, lost="drop") for left in (EVERYBODY, SURVIVORS))
    apart = distance(lost.method, never.method)
    _expect(apart < ROUNDING, f"a client that is lost before it has done anything changes numbers by {apart:.2g}")


def check_all_lost(case: Case) -> None:
    """Expect a round whose clients are all lost before they have done anything to change nothing."""
    rows = _second_round(case, LOSSY)
    if rows is not None and case.kind.knows_deadlines:
        away = gone_at(dict.fromkeys(EVERYBODY, rows["requested_s"].min() + 0.01))
        once, lost = (LOSSY.run(case, [EVERYBODY] * n, presence=away, lost="drop").method for n in (1, 2))
        _expect(bits(once) == bits(lost), "a round that loses everybody at once changes the model")


def check_rounds_end(case: Case) -> None:
    """Expect rounds to end whenever clients are lost or overtaken, or a deadline passes."""
    rows = _second_round(case, LOSSY)
    if rows is None:
        return
    for share in (0.2, 0.5, 0.8):
        leave_s = {c: instant(rows, c, share) for c in EVERYBODY}
        LOSSY.run(case, [EVERYBODY] * 3, device=None, presence=gone_at(leave_s, for_s=0.5), lost="drop")
        if case.kind.knows_deadlines:
            deadline_s = max(leave_s.values()) - rows["requested_s"].min()
            late = LOSSY.run(case, [EVERYBODY] * 2, device=None, lost="deadline", deadline_s=deadline_s)
            _expect(bool(late.clock.records.dropouts), "no client is too late for a deadline within the round")
    first = LOSSY.run(case, [EVERYBODY] * 3, device=None, wanted=2)
    found = bool(first.clock.records.dropouts)
    _trait(first.method, "waits_for_all", found, "a round with as many clients as wanted goes on without the others")


def _second_round(case: Case, world: World) -> NDArray[np.void] | None:
    """Give the operations of a round in which nobody is lost; None if nobody may be, or the server does all alone."""
    if not case.kind.survives:
        return None
    rows = world.run(case, [EVERYBODY] * 2, device=None).rows
    rows = rows[rows["round"] == 2]
    return rows if places.at(rows["node"], places.DEVICE).any() else None


def check_documented(case: Case) -> None:
    """Expect a method to say in a sentence what it is, and what its options are."""
    _expect((case.kind.__doc__ or "").split("\n")[0].endswith("."), "has no docstring that begins with a sentence")
    about = " ".join(vars(base).get("__doc__") or "" for base in case.kind.Options.__mro__)
    fields = case.kind.Options.model_fields.items()
    missing = [name for name, option in fields if f"`{name}`" not in about and not option.description]
    _expect(not missing, f"options without a word: {', '.join(missing)}")


CHECKS: tuple[Callable[[Case], None], ...] = (
    check_documented,
    check_repeatable,
    check_timing_only,
    check_array_clock,
    check_resume,
    check_bytes,
    check_messages,
    check_deployed,
    check_time,
    check_second_worker,
    check_ignored,
    check_idea,
    check_neutral,
    check_optimisers,
    check_codecs,
    check_adapters,
    check_on_nan,
    check_current,
    check_lost,
    check_lost_early,
    check_all_lost,
    check_rounds_end,
)


def check_method(kind: type[Method], *options: MethodOptions) -> None:
    """Run all checks on a method, with these options or, if there are none, with its `examples`.

    Raises AssertionError with a line for each check that fails, and TypeError for what is no method's class.
    """
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise TypeError(f"check_method takes a method's class, such as SplitFedV1, not {kind!r}")
    problems = []
    for case in [Case(kind, one) for one in options] or cases_of(kind):
        for check in CHECKS:
            try:
                with own_process():
                    check(case)
            except Exception as error:  # of a flow, it may be any
                what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
                problems.append(f"{case}: {check.__name__}: {what}")
    if problems:
        raise AssertionError("\n".join(problems))
