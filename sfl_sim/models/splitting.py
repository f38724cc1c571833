"""Splits the graph of a forward into layers, wherever one tensor, or several of other sizes, carry all that follows."""

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, pairwise, takewhile
from typing import Any

import torch
from torch import Tensor, fx, nn

from sfl_sim.models.following import BATCHES, Following

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
        given: shapes of what it takes of a sample, if that are several tensors.
        run: functions of the layer and of what it takes, in training and in evaluation.
        modes: paths of modules that are in another mode than the network, and their modes in training and evaluation.
    """

    name: str
    tensors: tuple[str, ...]
    modules: tuple[str, ...]
    copied: frozenset[str]
    constants: Mapping[str, Any]
    given: tuple[torch.Size, ...]
    run: tuple[Callable[..., Tensor | tuple[Tensor, ...]], ...]
    modes: Modes


class Layers:
    """Layers of a module whose forward has been followed in training and in evaluation, where it may do something else.

    Nodes that are `fixed` belong to no layer: each that needs one computes it again.

    Attributes:
        nodes: the nodes of each layer, in order, of both graphs, without fixed ones; one tensor comes to each.
        with_skips: the same of layers to which several tensors may come, too.
        sharing: what has joined layers because it is used in all of them: a parameter or buffer, or a module with some.
        ask_for_one: as `Following.asks_for_one`.
    """

    def __init__(self, trained: Following, evaluated: Following, skips: bool) -> None:
        self.followed, self._both = trained, (trained, evaluated)
        self._input = {followed.graph: next(iter(followed.graph.nodes)) for followed in self._both}
        self._answer = {followed.graph: next(iter(reversed(followed.graph.nodes))).args[0] for followed in self._both}
        self.sharing = ""
        self.ask_for_one = trained.asks_for_one or evaluated.asks_for_one
        nodes = [node for followed in self._both for node in followed.graph.nodes]
        self._with_matrix = {node for node in nodes if any(weight.ndim > 1 for weight in self._weights(node))}
        self._needed = {followed.graph: self._alive(followed) for followed in self._both}
        self._computed = set[fx.Node]()  # behind a matrix, and before the answer
        for node in nodes:
            if node in self._with_matrix or not self._computed.isdisjoint(node.all_input_nodes):
                self._computed.add(node)
        self._computed -= {*self._answer.values()}
        alone = (self._with_matrices(self._apart(self._stretches(followed))) for followed in self._both)
        self.nodes = self._needing_no_others(self._apart(self._beginning_alike(*alone)))
        self.with_skips = [part for nodes in self.nodes for part in self._between_skips(nodes)] if skips else self.nodes

    def _alive(self, followed: Following) -> dict[fx.Node, list[fx.Node]]:
        """Return what is needed later, for each node right behind it."""
        answer = self._answer[followed.graph]
        order = [node for node in followed.graph.nodes if node.op != "output" and not node.meta["fixed"]]
        position = {node: i for i, node in enumerate(order)}
        until = {node: max([-1, *(position[user] for user in node.users if user in position)]) for node in order}
        until[answer] = len(order)  # for good
        alive: dict[fx.Node, list[fx.Node]] = {}
        held: list[fx.Node] = []
        for node in order:
            held = alive[node] = [source for source in (*held, node) if until[source] > position[node]]
        return alive

    def _stretches(self, followed: Following) -> list[list[fx.Node]]:
        """Split the nodes where one tensor alone is needed later."""
        answer = self._answer[followed.graph]
        stretches: list[list[fx.Node]] = [[]]
        for node, alive in self._needed[followed.graph].items():
            if node.op != "placeholder":
                stretches[-1].append(node)
                if alive == [node] and node is not answer and _is_of_samples(node):
                    stretches.append([])
        return [stretch for stretch in stretches if stretch]

    def _between_skips(self, nodes: list[fx.Node]) -> list[list[fx.Node]]:
        """Split a layer where several tensors can be sent together."""
        alone = (self._apart(self._skipping(followed, nodes)) for followed in self._both)
        return self._needing_no_others(self._apart(self._beginning_alike(*alone)))

    def _skipping(self, followed: Following, layer: list[fx.Node]) -> list[list[fx.Node]]:
        """Split a layer between matrices where tensors of several sizes are needed later: as few numbers as can be."""
        needed, nodes = self._needed[followed.graph], _of(followed, layer)
        products = [i for i, node in enumerate(nodes) if node in self._with_matrix]
        ends = [0]
        for first, after in pairwise(products):
            places = [i for i in reversed(range(first, after)) if self._are_skips(needed[nodes[i]])]
            if places:
                ends.append(1 + min(places, key=lambda i: sum(_shape(held).numel() for held in needed[nodes[i]])))
        return [nodes[start:end] for start, end in pairwise([*ends, len(nodes)])]

    def _are_skips(self, tensors: list[fx.Node]) -> bool:
        """Return True for tensors that can be sent together, none of them raw samples, and not all of one size."""
        if not all(node in self._computed and _is_of_samples(node) for node in tensors):
            return False
        few, more = ([node.meta["examples"][i] for node in tensors] for i in range(len(BATCHES)))
        sizes = [x.shape[1:] for x in few]
        return (
            sizes == [x.shape[1:] for x in more]
            and len({x.dtype for x in few}) == 1
            and any(sum(map(operator.ne, a, b)) > 1 for a, b in combinations(sizes, 2) if len(a) == len(b))
        )

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

    def _beginning_alike(self, trained: list[list[fx.Node]], evaluated: list[list[fx.Node]]) -> list[list[fx.Node]]:
        """Join layers until each begins in both modes with the same matrix, and what comes to it has one shape."""
        targets = ({node.target for node in chain(*mode) if node in self._with_matrix} for mode in (trained, evaluated))
        in_both = set.intersection(*targets)
        begin = {_first(nodes, in_both): i for i, nodes in enumerate(evaluated) if i}
        bounds = [(0, 0)]
        for i, nodes in enumerate(trained):
            at = begin.get(_first(nodes, in_both), 0)
            if i and at > bounds[-1][1] and self._shapes(trained[i - 1]) == self._shapes(evaluated[at - 1]):
                bounds.append((i, at))
        pairs = pairwise([*bounds, (len(trained), len(evaluated))])
        return [
            list(chain(*trained[first:after], *evaluated[of_evaluated:after_these]))
            for (first, of_evaluated), (after, after_these) in pairs
        ]

    def _needing_no_others(self, stretches: list[list[fx.Node]]) -> list[list[fx.Node]]:
        """Join a stretch to the one before if it needs more of earlier tensors than its input can tell."""
        layers: list[list[fx.Node]] = []
        for stretch in stretches:
            layers.append(stretch)
            while len(layers) > 1 and any(
                self._fixed(_of(followed, layers[-1]), self._handed(followed, layers[-2])) is None
                for followed in self._both
            ):
                layers[-2:] = [layers[-2] + layers[-1]]
        return layers

    def _handed(self, followed: Following, nodes: list[fx.Node]) -> list[fx.Node]:
        """Return what a layer hands to the next one: one tensor, but where skips are sent together."""
        last = _of(followed, nodes)[-1]
        return self._needed[followed.graph][last] or [last]

    def _shapes(self, nodes: list[fx.Node]) -> list[torch.Size]:
        return [_shape(node) for node in self._needed[nodes[-1].graph][nodes[-1]]]

    def _fixed(self, nodes: Sequence[fx.Node], given: Sequence[fx.Node]) -> set[fx.Node] | None:
        """Return the fixed nodes that a layer with the inputs `given` computes; None if it cannot."""
        inside, pulled = {*nodes, *given}, set()
        waiting = [source for node in nodes for source in node.all_input_nodes if source not in inside]
        while waiting:
            node = waiting.pop()
            if node in pulled or node in inside:
                continue
            if not node.meta["fixed"]:
                return None
            pulled.add(node)
            asked = node.meta["shape_of"]
            if any(source not in inside and self._teller(given, source, node) is None for source in asked):
                return None
            waiting += [source for source in node.all_input_nodes if source not in asked]
        return pulled

    def _teller(self, given: Sequence[fx.Node], source: fx.Node, node: fx.Node) -> fx.Node | None:
        return next((one for one in given if self._tells(one, source, node)), None)

    def _tells(self, given: fx.Node, source: fx.Node, node: fx.Node) -> bool:
        """Return True if `node`, which asks `source` for its shape, type or device, can as well ask `given`."""
        mine, others = given.meta["examples"], source.meta["examples"]
        if any(node is followed.count.node for followed in self._both) or node.args[1:] == ("device",):
            return True
        if any(a.dtype != b.dtype for a, b in zip(mine, others, strict=True)):
            return False
        return node.args[1:] == ("dtype",) or [a.shape for a in mine] == [b.shape for b in others]

    @property
    def hindrance(self) -> str:
        """Why no cut is possible: what goes around most layers, and where it is needed again."""
        if self.sharing:
            used = f"the same weights ({self.sharing}) are used in its first layer and its last"
            return f"{used}, and a cut would train them apart: untie them"
        passed: dict[fx.Node, int] = {}  # matrices before each node
        samples = self._input[self.followed.graph]
        last = [samples]
        ways = []
        for node in self.followed.graph.nodes:
            where = f"at {node.target!r}" if node.op == "call_module" else f"behind {last[-1].target!r}"
            ways += [(len(last) - passed[source], source, where) for source in node.all_input_nodes if source in passed]
            if node in self._with_matrix:
                last.append(node)
            if not node.meta.get("fixed", True):
                passed[node] = len(last)
        around, source, where = max(ways, key=operator.itemgetter(0))
        if not around:
            return "it has one layer" if len(last) < 3 else "it does something else in training than in evaluation"
        what = "the samples are" if source is samples else f"what {str(source.target)!r} gives is"
        return f"no single tensor carries all that follows, as {what} needed again {where}"

    # ---- which modules are worth to be opened ----

    def candidates(self) -> Iterator[str]:
        """Yield the paths of modules of which a layer may become several: its first and its last with matrices."""
        for nodes in (_of(followed, nodes) for nodes in self.nodes for followed in self._both):
            called = [node for node in nodes if node.op == "call_module" and node in self._with_matrix]
            for node in {called[0], called[-1]} if called else ():
                if not _is_of_torch(self._called(node)) and any(True for _ in self._called(node).children()):
                    yield str(node.target)

    def are_cut_in(self, path: str, skips: bool) -> bool:
        """Return True if matrices of an opened module lie in several layers, of those with `skips` or of the others."""
        inside = {node for node in self._with_matrix if str(node.target).startswith(f"{path}.")}
        return sum(not inside.isdisjoint(nodes) for nodes in (self.with_skips if skips else self.nodes)) > 1

    # ---- what they are ----

    def cuts(self, modes: Modes) -> list[LayerPlan]:
        """Return the layers; `modes` are those of modules that are in another mode than the network."""
        before = [list(self._input.values()), *self.with_skips]
        return [
            self._plan(name, nodes, handing, modes)
            for name, nodes, handing in zip(self._names(), self.with_skips, before, strict=False)
        ]

    def _plan(self, name: str, nodes: list[fx.Node], before: list[fx.Node], modes: Modes) -> LayerPlan:
        runs, written, copied = [], list[fx.Node](), set[str]()
        for followed in self._both:
            mine, given = _of(followed, nodes), self._handed(followed, before)
            fixed = self._fixed(mine, given)
            assert fixed is not None
            graph = self._graph(followed, mine, given, fixed)
            code = graph.python_code("self")
            scope = dict(code.globals)
            exec(code.src, scope)  # which torch.fx has written
            runs.append(scope["forward"])
            written += graph.nodes
            copied |= {str(node.target) for node in fixed if node.op == "call_module"}
        held = dict.fromkeys(str(node.target) for node in written if node.op == "get_attr")
        called = tuple(dict.fromkeys(str(node.target) for node in written if node.op == "call_module"))
        constants = self.followed.constants
        return LayerPlan(
            name,
            tensors=tuple(path for path in held if path not in constants),
            modules=called,
            copied=frozenset(copied),
            constants={path: constants[path] for path in held if path in constants},
            given=tuple(_shape(node)[1:] for node in given) if len(given) > 1 else (),
            run=tuple(runs),
            modes={path: both for path, both in modes.items() if any(f"{path}.".startswith(f"{m}.") for m in called)},
        )  # fmt: skip

    def _graph(
        self, followed: Following, mine: list[fx.Node], given: Sequence[fx.Node], fixed: set[fx.Node]
    ) -> fx.Graph:
        """Return what a layer does in one mode."""
        inside = fixed | set(mine)
        graph = fx.Graph()
        copies = {node: graph.placeholder(f"x{i}") for i, node in enumerate(given)}
        learns = None  # what is in force before gradients are disabled
        for node in followed.graph.nodes:
            if node not in inside:
                continue
            if node.meta["learns"] != (learns is None):
                if learns is None:
                    learns = graph.call_function(torch.is_grad_enabled)
                    graph.call_function(torch._C._set_grad_enabled, (False,))
                else:
                    graph.call_function(torch._C._set_grad_enabled, (learns,))
                    learns = None

            def copy_of(source: fx.Node, asking: fx.Node = node) -> fx.Node:
                known = source if source in copies else self._teller(given, source, asking)
                assert known is not None
                return copies[known]

            copies[node] = graph.node_copy(node, copy_of)
        if learns is not None:
            graph.call_function(torch._C._set_grad_enabled, (learns,))
        answer = self._answer[followed.graph]
        handed = [copies[node] for node in ([answer] if answer in copies else self._handed(followed, mine))]
        graph.output(handed[0] if len(handed) == 1 else tuple(handed))
        return graph

    def _names(self) -> list[str]:
        """Name each layer by what the paths of its modules with matrices have in common, with `_` for dots."""
        names: list[str] = []
        for nodes in self.with_skips:
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


def _of(followed: Following, nodes: list[fx.Node]) -> list[fx.Node]:
    """Return the nodes of one mode."""
    return [node for node in nodes if node.graph is followed.graph]


def _first(nodes: list[fx.Node], targets: Collection[object]) -> object:
    """Return the first of these targets in a layer, or what no other layer has."""
    return next((node.target for node in nodes if node.target in targets), nodes[-1])


def _shape(node: fx.Node) -> torch.Size:
    shape: torch.Size = node.meta["examples"][0].shape
    return shape


def _is_of_samples(node: fx.Node) -> bool:
    """Return True for a tensor of floats with a row for each sample."""
    examples = node.meta["examples"]
    return all(
        isinstance(x, Tensor) and x.is_floating_point() and x.shape[:1] == (n,)
        for x, n in zip(examples, BATCHES, strict=True)
    )
