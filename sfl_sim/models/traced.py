"""A plain `nn.Module` as a sequence of layers: cut where one tensor, or skip connections, carry all that follows."""

from __future__ import annotations

import copy
import inspect
import math
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sfl_sim.errors import ScenarioError, in_short
from sfl_sim.models.faithful import answer_of, difference, tensors_of
from sfl_sim.models.following import BATCHES, CannotFollowError, Following
from sfl_sim.models.global_draws import apart
from sfl_sim.models.layers import Several, Shape, Stretch, taken_apart, together
from sfl_sim.models.splitting import LayerPlan, Layers

KEY = "model.factory"
WRAPPER = "an nn.Sequential of modules that are run one after another: nn.Sequential(first, second, ...)"


class CutOut(Stretch):
    """The layer that a cut says, of a module."""

    def __init__(self, whole: nn.Module, cut: LayerPlan) -> None:
        super().__init__()
        self.cut = cut
        for path in cut.modules:
            module = whole.get_submodule(path)
            owner, name = self._owner(path)
            same = {id(buffer): buffer for buffer in module.buffers()}
            owner.add_module(name, copy.deepcopy(module, same) if path in cut.copied else module)
        for path in cut.tensors:
            of_whole, _, name = path.rpartition(".")
            source, (owner, name) = whole.get_submodule(of_whole), self._owner(path)
            if name in source._parameters:
                owner.register_parameter(name, source._parameters[name])
            else:
                owner.register_buffer(name, source._buffers[name], name not in source._non_persistent_buffers_set)
        device = next((tensor.device for tensor in whole.parameters()), None)
        for name, value in cut.constants.items():
            if isinstance(value, Tensor):
                self.register_buffer(name, value.to(device, copy=True), persistent=False)
            else:
                self.__dict__[name] = value
        self.train(whole.training)

    def _owner(self, path: str) -> tuple[nn.Module, str]:
        """Return the module that holds what lies at a path, which is made if there is none, and the name in it."""
        *parts, name = path.split(".")
        owner: nn.Module = self
        for part in parts:
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner._modules[part]  # type: ignore[assignment]
        return owner, name

    def train(self, mode: bool = True) -> CutOut:
        super().train(mode)
        for path, modes in self.cut.modes.items():
            self.get_submodule(path).training = modes[not mode]
        return self

    def forward(self, x: Tensor | Several) -> Tensor | Several:
        given = x if isinstance(x, Several) else taken_apart(x, self.cut.given, self.layout) if self.cut.given else (x,)
        out = self.cut.run[not self.training](self, *given)
        if isinstance(out, Tensor):
            return out
        return Several(out) if self.inside else together(out)


@dataclass(frozen=True)
class CuttingPlan:
    """Where a module can be cut, and all modules with the same parts.

    A layer ends where all that follows depends on one tensor alone, so that residual blocks and other branches stay
    whole; tensors of several sizes, as at the levels of a U-Net, are sent together. What has no matrix of weights
    (activations, norms, pooling, dropout) belongs to the layer before it. As little as possible is followed: a module
    is opened only if it is cut inside, and what cannot be followed is whole.

    Attributes:
        parts: what must be equal of modules that are cut alike.
        cuts: the layers.
    """

    parts: list[object]
    cuts: list[LayerPlan]

    @classmethod
    def of(cls, module: nn.Module, input_shape: Shape) -> CuttingPlan:
        """Find where a module can be cut.

        Args:
            module: takes one tensor (n, *input_shape), besides inputs with defaults, and gives one.
            input_shape: shape of a sample.

        Raises:
            ScenarioError: its forward cannot be followed, is another one when it is cut, or cannot be cut anywhere.
        """
        name = type(module).__name__
        _check_inputs(module)
        modes, samples = _modes(copy.deepcopy(module)), _examples(module, input_shape)
        hourglasses = _hourglasses(module, samples[0])
        opened = set(hourglasses or ())
        closed: dict[str, str] = {}
        first = ""
        while True:
            layers, opened = _opened_where_cut(module, opened, closed, samples, hourglasses)
            cuts = layers.cuts(modes)
            if len(cuts) < 2:
                problem = f"can be cut nowhere: {layers.hindrance}"
                reason = next(filter(None, closed.values()), "")
                problem = first or f"{problem}{reason and f' ({reason})'}"
                raise ScenarioError(f"{problem}; give {WRAPPER}", key=KEY, found=name)
            found = cls(parts_of(module), _with_all(module, cuts))
            unlike = difference(module, found.applied_to(module), samples[0])
            if not unlike and layers.ask_for_one:
                unlike = _apart_for_one(module, found.applied_to(module), samples[0][:1])
            if not unlike:
                return found
            if any(cut.given for cut in cuts):
                hourglasses = None
                continue
            first = first or f"cannot be cut as it is trained: {unlike}"
            if not opened:
                raise ScenarioError(f"{first}; give {WRAPPER}", key=KEY, found=name)
            inside = [path for path in opened if f"{path!r}"[:-1] in unlike]
            closed |= _alike(module, opened, max(inside, key=len), unlike) if inside else dict.fromkeys(opened, unlike)

    def applied_to(self, module: nn.Module) -> nn.Sequential:
        """Return the layers of a module with the same parts, and with its own weights."""
        return nn.Sequential(OrderedDict((cut.name, CutOut(module, cut)) for cut in self.cuts))


def _apart_for_one(module: nn.Module, layers: nn.Sequential, sample: Tensor) -> str | None:
    """Say that layers answer otherwise than a module if there is a single sample; None if they do not."""
    whole, cut = copy.deepcopy(module).eval(), copy.deepcopy(layers).eval()
    with torch.no_grad():
        same = torch.allclose(answer_of(whole(sample)), cut(sample), rtol=1e-4, atol=1e-5)
    return None if same else "the output for a single sample differs"


def is_plain_sequence(module: nn.Module) -> bool:
    """Return True if a module does nothing but to run its children one after another."""
    mine, plain = type(module), nn.Sequential
    is_same = all(getattr(mine, name) is getattr(plain, name) for name in ("forward", "train", "__call__"))
    hooks = (value for name, value in vars(module).items() if name.endswith("_hooks") and "state_dict" not in name)
    return isinstance(module, plain) and is_same and not any(hooks)


def parts_of(module: nn.Module) -> list[object]:
    """Return paths and types of modules, names and shapes of tensors, which are equal in modules that are cut alike."""
    modules = [(path, type(inner)) for path, inner in module.named_modules()]
    return [*modules, *((name, tensor.shape) for name, tensor in tensors_of(module).items())]


def _opened_where_cut(
    module: nn.Module,
    opened: set[str],
    closed: dict[str, str],
    samples: tuple[Tensor, Tensor],
    hourglasses: Collection[str] | None,
) -> tuple[Layers, set[str]]:
    """Return layers of a module, and the modules that are opened: those that are cut inside, and not `closed`.

    Skip connections are cut within `hourglasses` and between what else is called; nowhere, if these are None.
    """
    while True:
        layers = Layers(*_followed(module, opened, closed, samples), skips=hourglasses is not None)
        opened = opened - closed.keys()
        more = set(layers.candidates()) - closed.keys()
        useless = {  # the innermost first: others may be cut in when these are whole
            path for path in opened
            if not layers.are_cut_in(path, skips=path in (hourglasses or ()))
            and not any(_is_in(inner, path) for inner in more | opened)
        }  # fmt: skip
        if not more and not useless:
            return layers, opened
        closed |= dict.fromkeys(useless, "")
        opened = (opened | more) - useless


def _followed(
    module: nn.Module, opened: Collection[str], closed: dict[str, str], samples: tuple[Tensor, Tensor]
) -> tuple[Following, Following]:
    """Follow a module in both modes; what cannot be followed is added to `closed`, with all of its type, and why."""
    while True:
        opened = [path for path in opened if path not in closed]
        copied = copy.deepcopy(module)
        try:
            trained = Following(copied.train(), opened, samples, {})
            return trained, Following(copied.eval(), opened, samples, trained.constants)
        except CannotFollowError as error:
            if not error.path:
                remedy = f"put that into a module of its own, which stays whole, or give {WRAPPER}"
                problem = f"its forward cannot be followed: it {error}; {remedy}"
                raise ScenarioError(problem, key=KEY, found=type(module).__name__) from error
            closed |= _alike(module, opened, error.path, str(error))


def _alike(module: nn.Module, opened: Collection[str], path: str, why: str) -> dict[str, str]:
    """Return why the module at a path is not opened, and all that are opened of its type."""
    kind = type(module.get_submodule(path))
    alike = [other for other in opened if type(module.get_submodule(other)) is kind]
    return dict.fromkeys({*alike, path}, f"{path}, a {kind.__name__}, {why}")


def _examples(module: nn.Module, input_shape: Shape) -> tuple[Tensor, Tensor]:
    """Return batches that a module takes; sequences are tried as numbers and as tokens."""
    generator = torch.Generator().manual_seed(0)
    numbers = [torch.randn(n, *input_shape, generator=generator) for n in BATCHES]
    tokens = [torch.randint(0, 2, (n, *input_shape), generator=generator) for n in BATCHES]
    for batches in (numbers, tokens) if len(input_shape) == 1 else (numbers,):
        try:
            with torch.no_grad(), apart():
                for mode in (True, False):
                    copy.deepcopy(module).train(mode)(batches[0])
        except Exception as error:  # whatever layers do with such samples
            shape, of_mode = "x".join(map(str, input_shape)), "in training" if mode else "in evaluation"
            problem = f"cannot take samples of shape {shape} {of_mode}: {in_short(error)}"
            failure = ScenarioError(problem, key=KEY, found=type(module).__name__)
        else:
            return batches[0], batches[1]
    raise failure


def _hourglasses(module: nn.Module, x: Tensor) -> set[str] | None:
    """Return paths of modules that shrink what they take, and give it in its size again, as U-Nets do.

    None for tokens: the sizes of what is sent together are known for one length.
    """
    if not x.is_floating_point():
        return None
    copied, sizes = copy.deepcopy(module).eval(), dict[str, tuple[int, int]]()

    def seen(path: str, args: object, out: object) -> None:
        given = args[0] if isinstance(args, tuple) and args else None
        if isinstance(given, Tensor) and isinstance(out, Tensor):
            sizes[path] = math.prod(given.shape[2:]), math.prod(out.shape[2:])

    for path, inner in copied.named_modules():
        inner.register_forward_hook(lambda _, args, out, path=path: seen(path, args, out))
    with torch.no_grad(), apart():
        copied(x)
    as_large = {path: before for path, (before, after) in sizes.items() if path and before == after}
    return {
        path
        for path, size in as_large.items()
        if any(1 < inside < size for inner, (_, inside) in sizes.items() if _is_in(inner, path))
    }


def _with_all(module: nn.Module, cuts: list[LayerPlan]) -> list[LayerPlan]:
    """Let the last layer hold what no layer uses, too, so that a state dict has all names."""
    held = [path for cut in cuts for path in (*cut.tensors, *(f"{called}." for called in cut.modules))]
    tensors = tensors_of(module)
    used = {id(tensor) for path, tensor in tensors.items() if path in held or any(map(path.startswith, held))}
    unused = [path for path, tensor in tensors.items() if id(tensor) not in used]
    return [*cuts[:-1], replace(cuts[-1], tensors=(*cuts[-1].tensors, *unused))]


def _is_in(path: str, outer: str) -> bool:
    return path.startswith(f"{outer}.")


def _check_inputs(module: nn.Module) -> None:
    """Raise ScenarioError if a module needs other inputs than samples."""
    inputs = inspect.signature(module.forward).parameters.values()
    several = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    needed = [given.name for given in inputs if given.default is given.empty and given.kind not in several]
    if len(needed) > 1 or not inputs:
        problem = (
            f"takes {len(needed)} inputs ({', '.join(needed)}), and samples are one tensor; give the others defaults"
        )
        raise ScenarioError(problem, key=KEY, found=type(module).__name__)


def _modes(module: nn.Module) -> dict[str, tuple[bool, bool]]:
    """Return the modes in training and in evaluation of modules that are in another than the whole then."""
    frozen = [weight.requires_grad for weight in module.parameters()]
    trained = {path: inner.training for path, inner in module.train().named_modules()}
    if frozen != [weight.requires_grad for weight in module.parameters()]:
        problem = "has a method `train` that freezes weights; freeze them when the model is made"
        raise ScenarioError(problem, key=KEY, found=type(module).__name__)
    evaluated = {path: inner.training for path, inner in module.eval().named_modules()}
    both = {path: (trained[path], evaluated[path]) for path in trained}
    return {path: modes for path, modes in both.items() if modes != (True, False)}
