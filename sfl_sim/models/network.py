"""A network as a list of named, priced layers that can be cut at any index."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from difflib import get_close_matches
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sfl_sim.errors import ScenarioError
from sfl_sim.models import global_draws
from sfl_sim.models.faithful import LAST_BITS, lending_difference, unless_rounding
from sfl_sim.models.forward_settings import ForwardSettings
from sfl_sim.models.layers import Stretch, hand_on
from sfl_sim.models.lora import Lora, adapt
from sfl_sim.models.part import Part, PricedLayers, is_own
from sfl_sim.models.plain_state import has_shapes_alone
from sfl_sim.models.price import Layer, one_sample, price
from sfl_sim.models.replica import Replica
from sfl_sim.models.weights import Weights
from sfl_sim.rng import torch_seed

Builder = Callable[[tuple[int, ...], int], nn.Sequential]
Fill = Callable[[nn.Sequential], None]
LABEL_BYTES = 8
"""Size of a label in a message, a torch int64 (docs/methods/timing.md#per-mini-batch)."""
CHECKED_SAMPLES = 4
CUTS_KEY = "model.cut.values"
LASTING = ("client", "device_speed", "random")
"""Ways in which clients' cuts differ for good."""
T = TypeVar("T")


class Network:
    """Layers of `build(input_shape, n_labels)`, priced once, from which parts are cut by layer index.

    Args:
        name: name in messages.
        build: builds an `nn.Sequential` whose children are the layers.
        input_shape: shape of one sample, without the batch dimension.
        n_labels: number of labels.
        dtype: floating type of weights and activations.
        channels_last: lay 4-d weights and images out as NHWC, which is exact and faster on CPUs (1.1 to 1.5 times),
            unless a layer cannot take them so (`Tensor.view`).
        tokens: whether a sample is a sequence of tokens, int64; None: if it has one dimension.
        weightless: it is known by its shapes alone, and takes no memory for weights: it can be timed but not trained.
        lora: adapters, with which all other weights are frozen; None: all weights are trained.

    Attributes:
        layers: prices of the layers.
        lowest: index of the first layer with weights that are trained; 0 if nothing is frozen.
        n_tokens: number of tokens that the first layer knows; None if it embeds none. (It may know more positions.)
        needs_batches_of_two: True if a batch norm cannot normalise a single sample.

    Raises:
        ScenarioError: the layers cannot take such inputs, or an operation has no price.
    """

    def __init__(
        self,
        name: str,
        build: Builder,
        input_shape: tuple[int, ...],
        n_labels: int,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = True,
        tokens: bool | None = None,
        weightless: bool = False,
        lora: Lora | None = None,
    ) -> None:
        self.name = name
        self.input_shape = tuple(input_shape)
        self.n_labels = n_labels
        self.dtype = dtype
        self.tokens = len(self.input_shape) == 1 if tokens is None else tokens
        self.channels_last = channels_last
        self.weightless = weightless
        self.forward_settings = ForwardSettings()
        self._fill: Fill | None = None
        self._initial_seed: int | None = None
        self.build = build
        self.lora = lora
        self._unweighted: dict[tuple[object, ...], Any] = {}  # layers and parts; copies with other settings share it
        self._is_unweighted = False
        self._by_length: dict[int, Any] = {}  # prices of layers, and layers at 0; copies with other settings share it
        self._deaf = 0  # layers that no gradient reaches
        self._checked: set[int] = set()  # with how many last bits; copies with other settings share it
        try:
            with _one_thread(), self.measuring():
                module = self._module(seed=0)
                if not weightless and any(map(is_own, module.modules())):
                    self._deaf = _without_gradient(module, one_sample(module, self.input_shape, self.tokens))
                    module[: self._deaf].requires_grad_(requires_grad=False)
                embeddings = (inner for inner in module[0].modules() if isinstance(inner, nn.Embedding))
                self.n_tokens = max((embedding.num_embeddings for embedding in embeddings), default=None)
                self.layers = price(module, self.input_shape, self.tokens)
                self.channels_last &= _runs_channels_last(one_sample(module, self.input_shape, self.tokens), module)
                self.needs_batches_of_two = not _trains_on(one_sample(module, self.input_shape, self.tokens), module)
        except ScenarioError:
            raise
        except Exception as error:  # a user's own layers may do anything
            kind = "tokens, which samples of whole numbers are," if self.tokens else "inputs"
            shape = "x".join(map(str, input_shape))
            raise ScenarioError(
                f"model {name!r} cannot take {kind} of shape {shape}: {in_one_line(error)}", key="model"
            ) from error
        learning = next((i for i, layer in enumerate(self.layers) if layer.parameters), len(self.layers))
        self.lowest = learning if any(layer.frozen for layer in self.layers[:learning]) else 0

    def with_settings(self, forward_settings: ForwardSettings) -> Network:
        """Return the same network with parts that are called as `forward_settings` says."""
        network = copy(self)
        network.forward_settings = forward_settings
        return network

    def starting(self, fill: Fill | None = None, seed: int | None = None) -> Network:
        """Return the same network with other initial weights than those drawn with the seed of the run.

        Args:
            fill: sets the weights of a whole network that has just been built; it is tried on one without weights.
            seed: seed with which they are drawn.

        Raises:
            ScenarioError: `fill` has no such weights.
        """
        network = copy(self)
        network._fill, network._initial_seed = fill, seed
        if fill:
            fill(self._skeleton())
        return network

    def headed(self, cut: int, head: Callable[[nn.Sequential], nn.Module], lora: Lora | None = None) -> Network:
        """Return the network of the first `cut` layers, and one more, `exit`, that `head` makes of all layers.

        The layers have the same initial numbers as in this network; adapters are those of `lora`, if any.
        """

        def build(input_shape: tuple[int, ...], n_labels: int) -> nn.Sequential:
            layers = self.build(input_shape, n_labels)
            if self._fill:
                self._fill(layers)
            first = layers[:cut]
            first.add_module("exit", head(layers))
            return first

        small = Network(
            self.name, build, self.input_shape, self.n_labels, dtype=self.dtype, channels_last=self.channels_last,
            tokens=self.tokens, weightless=self.weightless, lora=lora,
        )  # fmt: skip
        return small.with_settings(self.forward_settings).starting(seed=self._initial_seed)

    def measuring(self) -> AbstractContextManager[object]:
        """Return a context in which all layers can run once: tensors have shapes alone if the network is weightless."""
        if not self.weightless:
            return nullcontext()
        from torch._subclasses.fake_tensor import FakeTensorMode  # takes seconds to import

        return FakeTensorMode()

    @property
    def every_token(self) -> bool:
        """True if the output of a sequence is (T, V) scores of the next token at every position, instead of one."""
        return len(self.layers[-1].out_shape) == 2

    @property
    def least_batch(self) -> int:
        """Number of samples of the smallest mini-batch on which it trains."""
        return 2 if self.needs_batches_of_two else 1

    def needs_batches_of_two_before(self, cut: int) -> bool:
        """Return True if the layers up to `cut` have a batch norm that cannot normalise a single sample."""
        module = self._module(seed=0)[:cut]
        return not _trains_on(one_sample(module, self.input_shape, self.tokens), module)

    def functional(self) -> Replica:
        """Return the whole network with weights that can be others than those of the layers that were built.

        Raises ScenarioError if the layers use other tensors than registered parameters and buffers.
        """
        (whole,) = self.split(seed=0, device=torch.device("cpu"))
        try:
            whole.weights(one_sample(whole.part.skeleton, self.input_shape, self.tokens), training=False)
        except Exception as error:  # a user's own layers may do anything
            problem = "has layers with tensors that are neither nn.Parameter nor made by register_buffer"
            raise ScenarioError(f"{problem}: {in_one_line(error)}", key="model.factory", found=self.name) from error
        return whole

    def check_lending(self, device: torch.device | str = "cpu", last_bits: int = LAST_BITS) -> None:
        """Raise ScenarioError if clients whose weights are lent to shared layers train otherwise than with modules.

        Layers of torch and ours are known not to. For others it takes about 30 passes of four random samples, once for
        a network and its copies, and the memory of four networks.
        """
        if last_bits in self._checked or not any(map(is_own, self._bare().modules())):
            return

        def compared(in_double: bool, last_bits: int) -> str | None:
            plain = self.with_settings(ForwardSettings())
            plain.dtype = torch.float64 if in_double else self.dtype
            return plain._lending_difference(device, last_bits)

        if problem := unless_rounding(compared, last_bits):
            raise ScenarioError(problem, key="model.factory", found=self.name)
        self._checked.add(last_bits)

    def _lending_difference(self, device: torch.device | str, last_bits: int) -> str | None:
        bare = self._bare()
        parts = [self._part(bare, i, i + 1) for i in range(len(self))]
        modules = [self._module(seed).to(device) for seed in range(2)]
        with torch.no_grad():
            for parameter in modules[1].parameters():  # which may be those of the other client
                parameter.mul_(1.25)
        generator = torch.Generator().manual_seed(0)
        shape = CHECKED_SAMPLES, *self.input_shape
        batches = []
        for _ in modules:
            if self.tokens:
                batches.append(torch.randint(2, shape, generator=generator))  # every embedding knows two
            else:
                x = torch.randn(shape, generator=generator, dtype=self.dtype)
                batches.append(x.contiguous(memory_format=torch.channels_last) if self.channels_last else x)
        return lending_difference(modules, parts, [x.to(device) for x in batches], last_bits)

    @property
    def draws(self) -> bool:
        """True if a training pass draws random numbers, so that its result depends on the passes before it."""
        module = self._module(seed=0).train()
        x = one_sample(module, self.input_shape, self.tokens)
        with global_draws.apart():
            before = global_draws.states()
            module(torch.cat([x, x]))
            return global_draws.has_drawn_since(before)

    def __len__(self) -> int:
        return len(self.layers)

    @property
    def macs(self) -> int:
        """MACs of one sample's forward pass through the whole network."""
        return sum(layer.macs for layer in self.layers)

    def frozen_bytes(self, layers: Iterable[Layer]) -> int:
        """Bytes of the frozen weights of `layers` at a client, and in the message that brings them, as float32."""
        return 4 * sum(layer.frozen for layer in layers)

    def cut_at(self, cut: int | str | float, key: str = "model.cut", above: int = 0, ends: bool = False) -> int:
        """Return the number of layers before `cut`: more than `above`, and not all of them.

        Args:
            cut: index (from 1) or name of the layer after which the cut comes; or the share of the layers that come
                before it, a float in (0, 1), rounded and kept within the bounds.
            key: scenario key of the cut, for messages.
            above: layers before an earlier cut.
            ends: an index may also be `above` or that of the last layer, so that a part between cuts has no layers.

        Raises:
            ScenarioError: there is no such cut; it lists the layers.
        """
        first, last = (above, len(self)) if ends else (above + 1, len(self) - 1)
        indices = {layer.name: index for index, layer in enumerate(self.layers, 1) if first <= index <= last}
        if not indices:
            after = f" after layer {above}" if above else ""
            raise ScenarioError(f"{self.name} has {len(self)} layers and cannot be cut{after}", key=key, found=cut)
        if isinstance(cut, float):
            return min(max(int(cut * len(self) + 0.5), above + 1), len(self) - 1)
        index = indices.get(cut, 0) if isinstance(cut, str) else cut
        if index in indices.values():
            return index
        problem = f"a cut of {self.name} comes after one of its layers {first} to {last}"
        if isinstance(cut, str) and (nearest := get_close_matches(cut, indices, n=1)):
            problem += f", did you mean {nearest[0]!r}?"
        raise ScenarioError(
            problem, key=key, found=cut, allowed=", ".join(f"{i} {name}" for name, i in indices.items())
        )

    def unweighted(self) -> Network:
        """Return the same network for timing alone: its parts share their layers, and equal parts are one.

        To make the layers of a deep network takes tens of milliseconds, and studies by the clock alone need dozens of
        parts: for all cuts, and for each with all seeds.
        """
        network = copy(self)
        network._is_unweighted = True
        return network

    def part(self, start: int, stop: int) -> Part:
        """Return the part of the layers `start` to `stop` (0-based, `stop` excluded), without weights."""
        if not self._is_unweighted:
            return self._part(self._bare(), start, stop)
        key = start, stop, self.forward_settings.autocast
        if key not in self._unweighted:
            bare = self._unweighted[()] = self._unweighted.get(()) or self._bare()
            self._unweighted[key] = self._part(bare, start, stop)
        part: Part = self._unweighted[key]
        return part

    def _part(self, bare: nn.Sequential, start: int, stop: int) -> Part:
        skeleton, layers = bare[start:stop], self.layers[start:stop]
        if layers and layers[-1].is_complex:
            problem = f"layer {layers[-1].name} gives complex numbers, which losses and messages do not hold"
            raise ScenarioError(problem, key="model.cut" if stop < len(self) else "model")
        hand_on(skeleton)
        if self.channels_last and layers and isinstance(skeleton[0], Stretch):
            skeleton[0].layout = torch.channels_last
        return Part(
            _of_type(skeleton, self.dtype),
            first=start <= self.lowest,
            prices=partial(self._prices, start, stop),
            dtype=self.dtype,
            channels_last=self.channels_last,
            forward_settings=self.forward_settings,
            aggregate=self.lora.aggregate if self.lora else None,
        )

    def _prices(self, start: int, stop: int, length: int) -> PricedLayers:
        """Return what a part asks for; layers are priced once for each length of a sequence.

        Raises ScenarioError if they cannot take sequences of this length.
        """
        shape = (length,) if length else self.input_shape
        if length and length not in self._by_length:
            try:
                with _one_thread(), self.measuring():
                    module = self._by_length.setdefault(0, self._module(seed=0))
                    self._by_length[length] = price(module, shape, self.tokens)
            except Exception as error:  # a user's own layers may do anything
                problem = f"cannot take shorter sequences, of {length} tokens: {in_one_line(error)}"
                raise ScenarioError(problem, key="model", found=self.name) from error
        layers = self._by_length[length] if length else self.layers
        n_labels = math.prod(shape) if self.every_token else 1
        before = layers[start - 1].out_shape if start else shape
        return layers[start:stop], before, self.forward_settings.label_bytes or LABEL_BYTES * n_labels

    def split(self, *cuts: int, seed: int, device: torch.device | None) -> list[Replica]:
        """Make replicas of the parts between `cuts`, initialised as one network, so that weights do not depend on cuts.

        Args:
            cuts: layer indices that do not decrease; between two equal ones lies a part without layers.
            seed: seed of the initial weights.
            device: device of the weights; None for replicas without weights, for timing-only runs.
        """
        bounds = [0, *cuts, len(self)]
        if bounds != sorted(bounds):
            raise ValueError(f"cuts {cuts} of {len(self)} layers are out of order")
        if device is None:
            return [Replica(self.part(start, stop)) for start, stop in pairwise(bounds)]
        initial_seed = seed if self._initial_seed is None else self._initial_seed
        whole = self._module(torch_seed(initial_seed, "initial weights"), self._fill)
        parts = ((self._part(self._bare(), start, stop), whole[start:stop]) for start, stop in pairwise(bounds))
        return [Replica(part, Weights.of(part, module, device, seed)) for part, module in parts]

    def _bare(self) -> nn.Sequential:
        return self._adapted(self._skeleton())

    def _skeleton(self) -> nn.Sequential:
        try:
            with torch.device("meta"):
                skeleton = self.build(self.input_shape, self.n_labels)
            if not has_shapes_alone(skeleton):
                return skeleton
        except Exception:  # a user's factory may read numbers, of which there are none
            pass
        with global_draws.drawing(0):
            return self.build(self.input_shape, self.n_labels).to("meta")

    def _module(self, seed: int, fill: Fill | None = None) -> nn.Sequential:
        """Build the network, let `fill` set its weights, and draw its adapters last, on which nothing else depends."""
        with global_draws.drawing(seed):
            module = _of_type(self.build(self.input_shape, self.n_labels), self.dtype)
            if fill:
                fill(module)
            return self._adapted(module)

    def _adapted(self, module: nn.Sequential) -> nn.Sequential:
        if self.lora:
            adapt(module, self.lora)
        module[: self._deaf].requires_grad_(requires_grad=False)
        return module


def cuts_at(network: Network, values: Sequence[int | str | float]) -> list[int]:
    """Return the number of layers before each cut, given as `Network.cut_at` takes them; it raises ScenarioError."""
    return [network.cut_at(value, f"{CUTS_KEY}.{i}") for i, value in enumerate(values)]


def client_cuts(
    network: Network,
    by: str,
    values: Sequence[int | str | float],
    macs_per_s: Sequence[float],
    rng: np.random.Generator,
) -> list[int]:
    """Return the number of layers of each client.

    Args:
        network: network to cut.
        by: `client`: `values` has one cut for each client, in their order; `device_speed`: the clients, ranked by
            device, form as many groups as there are values, of equal size or one client more, the slowest first;
            `random`: each client's cut is drawn from `values` (docs/methods/harmony.md#choices).
        values: cuts as `Network.cut_at` takes them.
        macs_per_s: rate of each client's device; of equal ones, the lower client number counts as the slower.
        rng: random stream of the draw.

    Raises:
        ScenarioError: a wrong number of values, or a value that is no cut of the network.
    """
    cuts = cuts_at(network, values)
    n_clients = len(macs_per_s)
    if by == "client":
        if len(cuts) != n_clients:
            raise ScenarioError("needs one cut for each client", key=CUTS_KEY, found=len(cuts), allowed=[n_clients])
        return cuts
    if by == "random":
        drawn_cuts: list[int] = rng.choice(cuts, n_clients).tolist()
        return drawn_cuts
    return by_speed(cuts, macs_per_s, CUTS_KEY)


def by_speed(values: Sequence[T], macs_per_s: Sequence[float], key: str) -> list[T]:
    """Return the value of each client: groups of equal size or one client more, by device, the slowest first.

    Raises ScenarioError with `key` for more values than clients.
    """
    n_clients = len(macs_per_s)
    if len(values) > n_clients:
        raise ScenarioError(
            "has more values than there are clients", key=key, found=len(values), allowed=f"1 to {n_clients}"
        )
    of_client = [values[0]] * n_clients
    for value, group in zip(values, np.array_split(np.argsort(macs_per_s, kind="stable"), len(values)), strict=True):
        for client in group:
            of_client[client] = value
    return of_client


def _of_type(module: nn.Sequential, dtype: torch.dtype) -> nn.Sequential:
    """Convert floating parameters and buffers; `Module.to` cannot if they have shapes alone (`Network.measuring`)."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return module


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread: to start others takes longer than all that is computed for one sample."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_one_line(error: BaseException) -> str:
    """Return the first line of the error's text, after its type unless it is a RuntimeError or ValueError with text."""
    text = str(error).partition("\n")[0]
    return text if isinstance(error, RuntimeError | ValueError) and text else f"{type(error).__name__}: {text}"


def _runs_channels_last(sample: Tensor, module: nn.Module) -> bool:
    """Return False if a layer cannot take images and weights that lie channels last, as `Tensor.view` cannot."""
    if sample.ndim != 4:
        return False
    layout = torch.channels_last
    try:
        module.eval().to(memory_format=layout)(sample.to(memory_format=layout))
    except RuntimeError:
        return False
    finally:
        module.to(memory_format=torch.contiguous_format)
    return True


def _without_gradient(module: nn.Sequential, sample: Tensor) -> int:
    """Count the first layers that no gradient reaches, as a layer of a user's own detaches what comes, or uses no_grad.

    They are frozen, as torch's optimisers leave parameters without a gradient as they are.
    """
    deaf, x = 0, torch.cat([sample, sample])
    with global_draws.drawing(0), torch.enable_grad():
        for i, layer in enumerate(module.train()):
            x = x.detach().requires_grad_(i > 0)  # as samples do not
            out = layer(x.clone())  # which a layer may change in place
            if not isinstance(out, Tensor):  # which `price` refuses
                break
            if not out.requires_grad:
                deaf = i + 1
            else:
                torch.autograd.backward(out, torch.ones_like(out))
                deaf = i if x.requires_grad and x.grad is None else deaf
            x = out
    module.zero_grad()
    return deaf


def _trains_on(sample: Tensor, module: nn.Module) -> bool:
    """Return False if a batch norm then gets a single value per channel, which it cannot normalise."""
    try:
        module.train()(sample)
    except ValueError as error:
        if "more than 1 value per channel" in str(error):
            return False
        raise
    return True
