"""Splits the graph of a forward into layers, wherever one tensor carries all that follows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor, fx, nn

from sfl_sim.models.following import BATCHES, Following, is_in_place

VIEWS = {"view", "reshape", "flatten", "squeeze", "unsqueeze", "transpose", "permute", "expand", "unflatten",
         operator.getitem}  # fmt: skip
"""Methods whose results share memory with the tensor."""
Modes = Mapping[str, tuple[bool, bool]]
"""Whether modules are in training when the network is, and when it is in evaluation, by path."""


@dataclass(frozen=True)
class LayerPlan:
    """One layer: which tensors and modules of the whole network it holds, and what it does with them.

    Attributes:
        name: name of the layer.
        tensors: paths of parameters and buffers that it uses outside of modules that it calls.
        modules: paths of modules that it calls.
        copied: paths of those that other layers may call, too; they have no weights.
        constants: what the forward has made without samples, by name.
        run: function of the layer and of its input.
        modes: paths of modules that are in another mode than the network, and their modes in training and evaluation.
    """

    name: str
    tensors: tuple[str, ...]
    modules: tuple[str, ...]
    copied: frozenset[str]
    constants: Mapping[str, Any]
    run: Callable[[nn.Module, Tensor], Tensor]
    modes: Modes


class Layers:
    """Layers of a module whose forward has been followed.

    Nodes that are `fixed` belong to no layer: each that needs one computes it again.

    Attributes:
        nodes: the nodes of each layer, in order, without fixed ones.
        sharing: what has joined layers because it is used in all of them: a parameter or buffer, or a module with some.
    """

    def __init__(self, followed: Following) -> None:
        self.followed = followed
        (end,) = (node for node in followed.graph.nodes if node.op == "output")
        self._answer: fx.Node = end.args[0]
        self._input = next(iter(followed.graph.nodes))
        self.sharing = ""
        self._with_matrix = {node for node in followed.graph.nodes if any(w.ndim > 1 for w in self._weights(node))}
        self.nodes = self._needing_no_others(self._with_matrices(self._apart(self._stretches())))

    def _stretches(self) -> list[list[fx.Node]]:
        """Split the nodes where one tensor alone is needed later."""
        order = [node for node in self.followed.graph.nodes if node.op not in ("placeholder", "output")]
        order = [node for node in order if not node.meta["fixed"]]
        known = {*order, self._input}
        uses = {node: sum(user in known for user in node.users) for node in known}  # that are still to come
        uses[self._answer] = len(order) + 1  # for good
        stretches: list[list[fx.Node]] = [[]]
        alive = {self._input} if uses[self._input] else set()
        for node in order:
            stretches[-1].append(node)
            for source in set(node.all_input_nodes) & known:
                uses[source] -= 1
            alive = {held for held in (*alive, node) if uses[held]}
            if alive == {node} and node is not self._answer and _is_of_samples(node) and not _is_changed(node):
                stretches.append([])
        return [stretch for stretch in stretches if stretch]

    def _apart(self, stretches: list[list[fx.Node]]) -> list[list[fx.Node]]:
        """Join stretches that use the same weights, and those between them."""
        last: dict[int, int] = {}
        for number, stretch in enumerate(stretches):
            last |= {id(tensor): number for node in stretch for tensor in self._tensors(node)}
        joined: list[list[fx.Node]] = []
        until = -1
        for number, stretch in enumerate(stretches):
            if number > until:
                joined.append([])
            joined[-1] += stretch
            for node in stretch:
                for tensor in self._tensors(node):
                    if last[id(tensor)] > number:
                        self.sharing = str(node.target)
                    until = max(until, last[id(tensor)])
        return joined

    def _with_matrices(self, stretches: list[list[fx.Node]]) -> list[list[fx.Node]]:
        """Join stretches without a matrix of weights to those before, and those before the first to the first."""
        layers: list[list[fx.Node]] = []
        for stretch in stretches:
            if not layers or (not self._with_matrix.isdisjoint(stretch) and any(map(self._weights, layers[-1]))):
                layers.append([])
            layers[-1] += stretch
        return layers

    def _needing_no_others(self, stretches: list[list[fx.Node]]) -> list[list[fx.Node]]:
        """Join a stretch to the one before if it needs more of earlier tensors than its input can tell."""
        layers: list[list[fx.Node]] = []
        for stretch in stretches:
            layers.append(stretch)
            while len(layers) > 1 and self._fixed(layers[-1], layers[-2][-1]) is None:
                layers[-2:] = [layers[-2] + layers[-1]]
        return layers

    def _fixed(self, nodes: Sequence[fx.Node], given: fx.Node) -> set[fx.Node] | None:
        """Return the fixed nodes that a layer with the input `given` computes; None if it cannot."""
        inside, pulled = {*nodes, given}, set()
        waiting = [source for node in nodes for source in node.all_input_nodes if source not in inside]
        while waiting:
            node = waiting.pop()
            if node in pulled or node in inside:
                continue
            if not node.meta["fixed"]:
                return None
            pulled.add(node)
            asked = node.meta["shape_of"]
            if any(source not in inside and not self._tells(given, source, node) for source in asked):
                return None
            waiting += [source for source in node.all_input_nodes if source not in asked]
        return pulled

    def _tells(self, given: fx.Node, source: fx.Node, node: fx.Node) -> bool:
        """Return True if `node`, which asks `source` for its shape, type or device, can as well ask `given`."""
        mine, others = given.meta["examples"], source.meta["examples"]
        if node is self.followed.count.node or node.args[1:] == ("device",):
            return True
        if any(a.dtype != b.dtype for a, b in zip(mine, others, strict=True)):
            return False
        return node.args[1:] == ("dtype",) or [a.shape for a in mine] == [b.shape for b in others]

    @property
    def needed_again(self) -> str:
        """What goes around most layers, and where it is needed again."""
        passed: dict[fx.Node, int] = {}  # matrices before each node
        last = [self._input]
        ways = []
        for node in self.followed.graph.nodes:
            where = f"at {node.target!r}" if node.op == "call_module" else f"behind {last[-1].target!r}"
            ways += [(len(last) - passed[source], source, where) for source in node.all_input_nodes if source in passed]
            if node in self._with_matrix:
                last.append(node)
            if not node.meta.get("fixed", True):
                passed[node] = len(last)
        _, source, where = max(ways, key=operator.itemgetter(0))
        what = "the samples are" if source is self._input else f"what {str(source.target)!r} gives is"
        return f"{what} needed again {where}"

    # ---- which modules are worth to be opened ----

    def candidates(self) -> Iterator[str]:
        """Yield the paths of modules of which a layer may become several: its first and its last with matrices."""
        for nodes in self.nodes:
            called = [node for node in nodes if node.op == "call_module" and node in self._with_matrix]
            for node in {called[0], called[-1]} if called else ():
                if not _is_of_torch(self._called(node)) and any(True for _ in self._called(node).children()):
                    yield str(node.target)

    def are_cut_in(self, path: str) -> bool:
        """Return True if matrices of an opened module lie in several layers."""
        inside = {node for node in self._with_matrix if str(node.target).startswith(f"{path}.")}
        return sum(not inside.isdisjoint(nodes) for nodes in self.nodes) > 1

    # ---- what they are ----

    def cuts(self, modes: Modes) -> list[LayerPlan]:
        """Return the layers; `modes` are those of modules that are in another mode than the network."""
        return [
            self._plan(name, nodes, self.nodes[i - 1][-1] if i else self._input, modes)
            for i, (name, nodes) in enumerate(zip(self._names(), self.nodes, strict=True))
        ]

    def _plan(self, name: str, nodes: list[fx.Node], given: fx.Node, modes: Modes) -> LayerPlan:
        fixed = self._fixed(nodes, given)
        assert fixed is not None
        inside = fixed | set(nodes)
        graph = fx.Graph()
        copies = {given: graph.placeholder("x")}
        learns = None  # what is in force before gradients are disabled
        for node in self.followed.graph.nodes:
            if node not in inside:
                continue
            if node.meta["learns"] != (learns is None):
                if learns is None:
                    learns = graph.call_function(torch.is_grad_enabled)
                    graph.call_function(torch._C._set_grad_enabled, (False,))
                else:
                    graph.call_function(torch._C._set_grad_enabled, (learns,))
                    learns = None
            copies[node] = graph.node_copy(node, lambda source: copies.get(source, copies[given]))
        if learns is not None:
            graph.call_function(torch._C._set_grad_enabled, (learns,))
        graph.output(copies[nodes[-1] if nodes is not self.nodes[-1] else self._answer])
        code = graph.python_code("self")
        scope = dict(code.globals)
        exec(code.src, scope)  # which torch.fx has written
        held = dict.fromkeys(str(node.target) for node in graph.nodes if node.op == "get_attr")
        called = tuple(dict.fromkeys(str(node.target) for node in graph.nodes if node.op == "call_module"))
        constants = self.followed.constants
        return LayerPlan(
            name,
            tensors=tuple(path for path in held if path not in constants and path != "training"),
            modules=called,
            copied=frozenset(str(node.target) for node in fixed if node.op == "call_module"),
            constants={path: constants[path] for path in held if path in constants},
            run=scope["forward"],
            modes={path: both for path, both in modes.items() if any(f"{path}.".startswith(f"{m}.") for m in called)},
        )  # fmt: skip

    def _names(self) -> list[str]:
        """Name each layer by what the paths of its modules with matrices have in common, with `_` for dots."""
        names: list[str] = []
        for nodes in self.nodes:
            called = [node for node in nodes if node.op == "call_module"] or [n for n in nodes if n.op == "get_attr"]
            paths = [path.split(".") for node in called for path in self._owners(node)]
            paths = paths or [str(node.target).split(".") for node in called] or [[nodes[0].name]]
            common = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))]
            name = "_".join(common or paths[0])
            free = (f"{name}_{n}" if n else name for n in range(len(names) + 2))
            names.append(next(free_name for free_name in free if free_name not in names))
        return names

    def _owners(self, node: fx.Node) -> list[str]:
        """Return the paths of the innermost modules with matrices in what a node calls; modules of torch are whole."""
        path = str(node.target)
        if node.op == "get_attr":
            return [path] if node in self._with_matrix else []
        return [f"{path}.{inner}".rstrip(".") for inner in _innermost(self._called(node))]

    def _called(self, node: fx.Node) -> nn.Module:
        return self.followed.module.get_submodule(str(node.target))

    def _tensors(self, node: fx.Node) -> list[Tensor]:
        """Return parameters and state of what a node calls or takes."""
        if node.op == "call_module":
            return [*self._called(node).parameters(), *self._called(node).buffers()]
        return [node.meta["examples"][0]] if node.op == "get_attr" else []

    def _weights(self, node: fx.Node) -> list[nn.Parameter]:
        return [tensor for tensor in self._tensors(node) if isinstance(tensor, nn.Parameter)]


def _innermost(module: nn.Module) -> list[str]:
    """Return the paths of the innermost modules with matrices in a module."""
    is_whole = _is_of_torch(module)
    children = [] if is_whole else module.named_children()
    inside = [f"{name}.{path}".rstrip(".") for name, child in children for path in _innermost(child)]
    has_matrix = any(weight.ndim > 1 for weight in module.parameters(recurse=is_whole))
    return inside or ([""] if has_matrix else [])


def _is_of_torch(module: nn.Module) -> bool:
    """Return True for a layer of torch, which is never followed; containers are."""
    return type(module).__module__.startswith("torch.nn.") and not isinstance(module, nn.Sequential)


def _is_changed(node: fx.Node) -> bool:
    """Return True if a tensor, or a view of it, is changed in place, which autograd forbids behind a cut."""
    users = [user for user in node.users if user.args[:1] == (node,)]
    return any(is_in_place(user) or (user.target in VIEWS and _is_changed(user)) for user in users)


def _is_of_samples(node: fx.Node) -> bool:
    """Return True for a tensor of floats with a row for each sample."""
    examples = node.meta["examples"]
    return all(
        isinstance(x, Tensor) and x.is_floating_point() and x.shape[:1] == (n,)
        for x, n in zip(examples, BATCHES, strict=True)
    )
