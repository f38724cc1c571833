"""Follows a module's forward: the graph of what it does with a batch, and what is known of every value in it."""

import inspect
import operator
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from sfl_sim.errors import in_short
from sfl_sim.models.faithful import answer_of, tensors_of
from sfl_sim.models.global_draws import apart, has_drawn_since, states
from sfl_sim.models.plain_state import same
from sfl_sim.models.symbols import IN_PLACE, Symbol, patched, symbols_in

BATCHES = 2, 3
"""Numbers of samples of the examples of every value."""
OF_SHAPE = {"new_zeros", "new_ones", "new_full", "new_empty", "zeros_like", "ones_like", "full_like", "empty_like"}
"""Operations that ask a tensor for its shape, type and device alone."""
ASKING = {"size", "dim", "numel", "stride", "is_floating_point", "is_complex", "is_contiguous", "type", "get_device",
          "ndimension", "element_size", "nelement"}  # fmt: skip
"""Operations that ask the same, and do not make tensors."""
OF_GRADIENTS = {"requires_grad", "grad_fn", "is_leaf", "grad"}
"""What another cut changes about a tensor."""
PLAIN = bool, int, float, complex, str, type(None)


class CannotFollowError(Exception):
    """What a module does cannot be followed.

    Attributes:
        path: the module whose forward was running.
    """

    def __init__(self, problem: str, path: str) -> None:
        super().__init__(problem)
        self.path = path


class Following:
    """A forward of `module` with its graph, which takes the samples and gives one tensor.

    Nodes call submodules as they are, unless these are `opened`: their own forwards are followed, too. Of every node
    `meta` says:

    - `examples`: its values for `BATCHES` samples.
    - `fixed`: it depends neither on the samples' numbers, nor on weights, state or draws, so that it can be computed
      anywhere; of the samples it knows their number, and of tensors in `shape_of` the shape, type and device.
    - `path`: the opened module whose forward was running.
    - `learns`: gradients were enabled.

    Attributes:
        asks_for_one: True if Python has decided by whether there is more than one sample.

    Args:
        module: is changed as a forward changes it; give a copy.
        opened: paths of the modules that are followed, `""` for `module`, which is always.
        samples: two batches, of `BATCHES` samples.
        constants: what a forward has made without samples, by the name of its node, to which more is added.

    Raises:
        CannotFollowError: something in a forward has no place in a graph.
    """

    def __init__(
        self, module: nn.Module, opened: Collection[str], samples: tuple[Tensor, Tensor], constants: dict[str, Any]
    ) -> None:
        self.module = module
        self.graph = fx.Graph()
        self.constants = constants
        self.asks_for_one = False
        self._paths = {inner: path for path, inner in module.named_modules()}
        tensors = list(tensors_of(module).items())
        self._tensors = {id(tensor): name for name, tensor in reversed(tensors)}
        self._weights = set(map(id, module.parameters()))
        self._state = {id(tensor) for name, tensor in tensors if _is_state(module, name)} | self._weights
        self._attributes: dict[str, fx.Node] = {}
        self._constant_versions: list[tuple[Any, int]] = []
        self._opened = {"", *opened}
        self._stack: list[str] = [""]
        self.is_computing = False
        x = self._node("placeholder", "x", (), {}, samples, fixed=False)
        self.count = Symbol(self, self._node("call_method", "size", (x, 0), {}, BATCHES, fixed=True))
        self.count.node.meta["shape_of"] = (x,)
        with patched(self), apart(), torch.enable_grad():
            out = module(Symbol(self, x), **_without_cache(module))
        try:
            answer: Any = answer_of(out)
        except TypeError as error:
            self.fail(f"{error}: return the one that is trained")
        if type(answer) is not Symbol:
            self.fail("gives what does not depend on samples")
        self.graph.output(answer.node)
        for node in reversed(self.graph.nodes):  # of containers whose items, as those of draws, may be fewer next time
            if node.target is operator.getitem and not node.users:
                self.graph.erase_node(node)

    def fail(self, problem: str) -> NoReturn:
        """Raise CannotFollowError for the module whose forward is running."""
        raise CannotFollowError(problem, self._stack[-1])

    # ---- what happens ----

    def call(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Note the call of a module, or follow it."""
        path = self._paths.get(module)
        if self.is_computing or path is None:
            return call(module, *args, **kwargs)
        if path not in self._opened:
            try:
                return self.note("call_module", path, args, kwargs)
            except CannotFollowError:
                raise
            except Exception as error:  # whatever a layer may do with what is computed otherwise here
                self.fail(f"calls {path!r}, a {type(module).__name__}, which fails with {in_short(error)}")
        if (unlike := not_to_be_opened(module)) is not None:
            raise CannotFollowError(unlike, path)
        self._stack.append(path)
        before, attributes = states(), _kept(module)
        try:
            out = call(module, *args, **kwargs)
        except CannotFollowError:
            raise
        except Exception as error:  # whatever a forward may do with what stands for a tensor
            self.fail(f"fails with {in_short(error)}")
        if has_drawn_since(before):
            self.fail("draws random numbers that no tensor of its samples asks for")
        self._check_kept(module, attributes)
        self._stack.pop()
        return out

    def _check_kept(self, module: nn.Module, before: Mapping[str, tuple[Any, int]]) -> None:
        """Raise CannotFollowError if a forward gave a buffer another value, or changed an attribute."""
        for name, (value, version) in _kept(module).items():
            known, known_version = before.get(name, (value, version))
            if known is value and known_version == version:
                continue
            if known is value:
                self.fail(f"changes {name!r}, a tensor that is no buffer: self.register_buffer({name!r}, ...)")
            if name in module._buffers or name in module._parameters:
                self.fail(f"gives {name!r} a new value: change it in place, self.{name}.copy_(...)")
            if isinstance(value, PLAIN) and type(known) is type(value) and known != value:
                self.fail(f"changes its attribute {name!r}: make it a buffer that is changed in place")

    def attribute(self, owner: nn.Module, value: Any) -> Any:
        """Return what stands for a parameter or buffer that a forward asks for."""
        if self.is_computing or owner not in self._paths or not isinstance(value, Tensor):
            return value
        return Symbol(self, self._held(value))

    def is_same(self, value: Symbol, tensor: Tensor | None) -> bool:
        """Return True if a value is a tensor of the module, changed in place at most."""
        node = value.node
        while node.op != "get_attr" and is_in_place(node):
            node = node.args[0]
        return node is self._attributes.get(self._tensors.get(id(tensor), ""))

    def note(self, op: str, target: Any, args: Any, kwargs: Any = None) -> Any:
        """Note an operation, and return what stands for its result: the value itself if it is the same for all."""
        noted_args, noted_kwargs = self._noted(tuple(args)), self._noted(dict(kwargs or {}))
        name = _name_of(target, args)
        if target is getattr and name in OF_GRADIENTS:
            self.fail(f"asks a tensor for {name!r}, which depends on the cut")
        sources: list[fx.Node] = []
        fx.node.map_arg((noted_args, noted_kwargs), sources.append)
        with self._computing():
            before = states()
            examples = tuple(self._compute(op, target, noted_args, noted_kwargs, i) for i in range(len(BATCHES)))
            draws = has_drawn_since(before)
        numbers_used = [source for source in sources if not source.meta["fixed"]]
        shape_alone = (
            name in OF_SHAPE or (target is getattr and not _tensors_in(examples[0]))
            or (name in ASKING and not _tensors_in(examples[0]))
        ) and numbers_used == sources[:1]  # fmt: skip
        if numbers_used and not shape_alone and op == "call_module":
            shape_alone = self._asks_for_shapes(target, noted_args, noted_kwargs, numbers_used, examples)
        fixed = (shape_alone or not numbers_used) and not draws and not self._has_state(op, target)
        node = self._node(op, target, noted_args, noted_kwargs, examples, fixed)
        node.meta["shape_of"] = tuple(numbers_used) if fixed else ()
        node.meta["of_numbers"] = not fixed and op != "call_module" and any(map(_holds_numbers, numbers_used))
        if is_in_place(node):
            self._change_in_place(node, sources[0] if sources else None)
        return self._spread(node)

    def answer(self, value: Symbol, ask: Callable[[Any], Any]) -> Any:
        """Return what Python asks of a value that steers a forward, if it is the same for all samples."""
        node = value.node
        if ask is not len and _holds_numbers(node):
            self.fail("depends on numbers of samples, weights or draws where Python decides")
        with self._computing():
            answers = [ask(example) for example in node.meta["examples"]]
        if answers[0] != answers[1] or (ask is not len and self._compares_counts(node)):
            self.fail("depends on how many samples there are")
        return answers[0]

    def _compares_counts(self, node: fx.Node) -> bool:
        """Return True if a number of samples is held against a number other than 0 and 1, for which it is not tried."""
        if isinstance(node.meta["examples"][0], Tensor | torch.dtype | torch.device):
            return False
        numbers = [arg for arg in node.args if isinstance(arg, int | float)]
        if not numbers or not any(isinstance(source.meta["examples"][0], int) for source in node.all_input_nodes):
            return False
        self.asks_for_one = True
        return not set(numbers) <= {0, 1}

    # ---- nodes ----

    def _node(self, op: str, target: Any, args: Any, kwargs: Any, examples: Any, fixed: bool) -> fx.Node:
        node = self.graph.create_node(op, target, args, kwargs)
        node.meta.update(
            examples=examples,
            fixed=fixed,
            path=self._stack[-1],
            learns=torch.is_grad_enabled(),
            shape_of=(),
            of_numbers=False,
        )
        return node

    def _held(self, value: Any) -> fx.Node:
        """Return the node of a tensor of the module, or of a constant."""
        name = self._tensors.get(id(value))
        if name is None:
            if isinstance(value, Tensor) and value.requires_grad:
                self.fail("computes with weights that no module registers: nn.ModuleList instead of a list")
            alike = (known for known, other in self.constants.items() if same(value, other))
            name = next(alike, f"constant_{len(self.constants)}")
            self.constants.setdefault(name, value)
            self._tensors[id(value)] = name
            self._constant_versions.append((value, value._version if isinstance(value, Tensor) else 0))
        if name not in self._attributes:
            fixed = id(value) not in self._state or not (value.is_floating_point() or value.is_complex())
            self._attributes[name] = self._node("get_attr", name, (), {}, (value, value), fixed)
        return self._attributes[name]

    def _noted(self, value: Any) -> Any:
        """Replace what stands for values by its nodes, and tensors by nodes of constants."""
        if type(value) is Symbol:
            if value.following is not self:
                self.fail("uses what an earlier call has kept")
            return value.node
        if isinstance(value, Tensor):
            return self._held(value)
        if isinstance(value, torch.Size):
            return tuple(value)
        if type(value) in (list, tuple):
            return type(value)(map(self._noted, value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return tuple(map(self._noted, value))
        if type(value) in (dict, OrderedDict):
            return {key: self._noted(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(*(self._noted(part) for part in (value.start, value.stop, value.step)))
        if any(True for _ in symbols_in(value)) or isinstance(value, nn.Module):
            self.fail(f"hands a {type(value).__name__} to a function or module")
        if isinstance(value, (*PLAIN, torch.dtype, torch.device, torch.layout, torch.memory_format)) or value is ...:
            return value
        return self._held(value)

    def _spread(self, node: fx.Node) -> Any:
        """Return what stands for a node: containers of such, and plain values that never change."""
        first, second = node.meta["examples"]
        if (node.target is getattr and node.args[1] == "shape") or isinstance(first, torch.Size):
            return tuple(self._item(node, i) for i in range(len(first)))
        if isinstance(first, PLAIN) and first == second and not self._counts(node) and not node.meta["of_numbers"]:
            if not node.users:
                self.graph.erase_node(node)
            return first
        if type(first) is int and (first, second) == BATCHES:
            return self.count
        if isinstance(first, tuple | list) and len(first) == len(second):
            items = [self._item(node, i) for i in range(len(first))]
            return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
        if isinstance(first, dict):
            values: dict[str, Any] = {key: self._item(node, key) for key in first}
            kind: Any = type(first)
            return kind(**values) if hasattr(first, "__dataclass_fields__") else kind(values)
        return Symbol(self, node)

    def _item(self, node: fx.Node, key: Any) -> Any:
        return self.note("call_function", operator.getitem, (Symbol(self, node), key))

    def _counts(self, node: fx.Node) -> bool:
        """Return True if a plain value is computed from others that depend on how many samples there are."""
        return any(isinstance(source.meta["examples"][0], int | float) for source in node.all_input_nodes)

    def _compute(self, op: str, target: Any, args: Any, kwargs: Any, i: int) -> Any:
        args, kwargs = _with_values((args, kwargs), lambda source: source.meta["examples"][i])
        if op == "call_module":
            return self.module.get_submodule(target)(*args, **kwargs)
        if op == "call_method":
            return getattr(args[0], target)(*args[1:], **kwargs)
        return target(*args, **kwargs)

    def _asks_for_shapes(self, target: str, args: Any, kwargs: Any, used: Collection[fx.Node], examples: Any) -> bool:
        """Return True if a module without state gives the same for whatever numbers there are in its inputs."""
        if self._has_state("call_module", target) or not all(
            isinstance(source.meta["examples"][0], Tensor) and source.meta["examples"][0].is_floating_point()
            for source in used
        ):
            return False
        with self._computing():
            for number in (torch.nan, torch.inf, -torch.inf):
                other = self._given(number, target, args, kwargs, used)
                pairs = zip(_tensors_in(examples[0]), _tensors_in(other), strict=False)
                if not _tensors_in(other) or not all(torch.equal(a, b) for a, b in pairs):
                    return False
        return True

    def _given(self, number: float, target: str, args: Any, kwargs: Any, used: Collection[fx.Node]) -> Any:
        """Return what a module gives for this number everywhere in some inputs; None if it cannot take it."""

        def filled(source: fx.Node) -> Any:
            example = source.meta["examples"][0]
            return torch.full_like(example, number) if source in used else example

        args, kwargs = _with_values((args, kwargs), filled)
        try:
            return self.module.get_submodule(target)(*args, **kwargs)
        except Exception:  # what cannot take such numbers looks at them
            return None

    def _has_state(self, op: str, target: Any) -> bool:
        if op != "call_module":
            return False
        module = self.module.get_submodule(target)
        return any(id(tensor) in self._state for tensor in (*module.parameters(), *module.buffers()))

    def _change_in_place(self, node: fx.Node, changed: fx.Node | None) -> None:
        """Let nothing be computed again that is changed, and refuse changes of what belongs to nobody."""
        for value, version in self._constant_versions:
            if isinstance(value, Tensor) and value._version != version:
                self.fail("changes a tensor that is no buffer: self.register_buffer(...)")
        waiting = [node] if changed is None else [node, changed]
        while waiting:
            source = waiting.pop()
            if source.meta["fixed"] and source is not self.count.node:
                source.meta["fixed"] = False
                waiting += source.all_input_nodes

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Return a context in which values are computed, and nothing is noted; draws afterwards are as without it."""
        self.is_computing = True
        try:
            with torch.no_grad(), apart():
                yield
        finally:
            self.is_computing = False


def not_to_be_opened(module: nn.Module) -> str | None:
    """Return why the forward of a module must not be followed: what is around it would be lost; None if it may be."""
    kind = type(module)
    if kind.__call__ is not nn.Module.__call__ or isinstance(module, torch.jit.ScriptModule):
        return f"is a {kind.__name__}, which is called in its own way"
    if module._backward_hooks or module._backward_pre_hooks or module._is_full_backward_hook:
        return "has hooks on its backward pass"
    return None


def _kept(module: nn.Module) -> dict[str, tuple[Any, int]]:
    """Return what a module keeps from call to call, and how often what is no buffer has been changed in place."""
    buffers = {name: (value, 0) for name, value in (*module._buffers.items(), *module._parameters.items())}
    attributes = module.__dict__.items()
    return buffers | {name: (value, value._version if type(value) is Tensor else 0) for name, value in attributes}


def _is_state(module: nn.Module, path: str) -> bool:
    owner, _, name = path.rpartition(".")
    return name not in module.get_submodule(owner)._non_persistent_buffers_set


def _name_of(target: Any, args: Any) -> str:
    """Return the name of an operation, or of the attribute that it asks for."""
    return str(args[1] if target is getattr else target if isinstance(target, str) else getattr(target, "__name__", ""))


def is_in_place(node: fx.Node) -> bool:
    """Return True if an operation changes its first argument."""
    name = _name_of(node.target, node.args)
    named_so = name.endswith("_") and name not in ("and_", "or_") and not name.endswith("__")
    return node.op != "call_module" and (named_so or name in IN_PLACE or node.kwargs.get("inplace") is True)


def _holds_numbers(node: fx.Node) -> bool:
    """Return True if a value is computed from numbers of samples, weights or draws."""
    is_tensor = isinstance(node.meta["examples"][0], Tensor)
    return bool(node.meta["of_numbers"] or (is_tensor and not node.meta["fixed"]))


def _with_values(args: Any, value_of: Callable[[fx.Node], Any]) -> Any:
    """Replace nodes by values; torch.fx keeps lists and dicts that no forward could change."""
    if isinstance(args, fx.Node):
        return value_of(args)
    if isinstance(args, list | tuple):
        return (list if isinstance(args, list) else tuple)(_with_values(item, value_of) for item in args)
    if isinstance(args, dict):
        return {key: _with_values(item, value_of) for key, item in args.items()}
    return fx.node.map_arg(args, value_of)


def _tensors_in(value: Any) -> list[Tensor]:
    return [item for item in tree_leaves(value) if isinstance(item, Tensor)]


def _without_cache(module: nn.Module) -> dict[str, bool]:
    """Return the input that keeps language models of transformers from noting keys for tokens to come."""
    return {"use_cache": False} if "use_cache" in inspect.signature(module.forward).parameters else {}
