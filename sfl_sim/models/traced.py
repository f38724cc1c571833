"""A plain `nn.Module` as a sequence of layers: cut where torch.fx sees that one tensor carries all that follows."""

from __future__ import annotations

import inspect
import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import takewhile

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from sfl_sim.errors import ScenarioError, in_short
from sfl_sim.models.layers import Shape

KEY = "model.factory"
WRAPPER = "an nn.Sequential of modules that are run one after another: nn.Sequential(first, second, ...)"
DROPOUTS: dict[Callable[..., Tensor], type[nn.Module]] = {
    functional.dropout: nn.Dropout,
    functional.dropout1d: nn.Dropout1d,
    functional.dropout2d: nn.Dropout2d,
    functional.dropout3d: nn.Dropout3d,
    functional.alpha_dropout: nn.AlphaDropout,
}
"""Functions that are something else in training and in evaluation, and the modules that know which it is."""


class _Noting(fx.Interpreter):
    """Runs a graph, and notes of each node whether it gives a tensor."""

    def run_node(self, n: fx.Node) -> object:
        result: object = super().run_node(n)
        n.meta["is tensor"] = isinstance(result, Tensor)
        return result


class _Tracer(fx.Tracer):
    """Follows modules down to those of torch, and to those without modules of their own."""

    def of_samples(self, module: nn.Module) -> fx.Graph:
        """Follow a module that is called with samples alone: its other inputs have their defaults."""
        kind = type(module)
        first, *others = inspect.signature(module.forward).parameters.values()
        several = first.VAR_POSITIONAL, first.VAR_KEYWORD
        if not (others or first.kind in several) or any(
            other.default is other.empty and other.kind not in several for other in others
        ):
            return self.trace(module)
        self.traced_func_name = "forward_of_samples"
        setattr(kind, self.traced_func_name, lambda self, samples: self.forward(samples))
        try:
            return self.trace(module)
        finally:
            delattr(kind, self.traced_func_name)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or not any(True for _ in m.children())


class Stretch(fx.GraphModule):
    """Part of a graph as a layer; one that fails says so to its caller alone, where torch.fx prints it, too."""

    def recompile(self) -> fx.graph.PythonCode:
        code = super().recompile()
        type(self).__call__ = nn.Module.__call__  # type: ignore[method-assign]
        return code


def sequence_of(module: nn.Module, input_shape: Shape) -> nn.Sequential:
    """Make a sequence of layers of a module, with the module's own weights.

    A layer ends where all that follows depends on one tensor alone, so that residual blocks and other branches stay
    whole. What has no matrix of weights (activations, norms, pooling, dropout) belongs to the layer before it.

    Args:
        module: takes one tensor (n, *input_shape), besides inputs with defaults, and gives one.
        input_shape: shape of a sample.

    Raises:
        ScenarioError: torch.fx cannot follow the module, or it cannot be cut anywhere.
    """
    name = type(module).__name__
    try:
        graph = _Tracer().of_samples(module)
        traced = fx.GraphModule(module, graph)
        other = _code(fx.GraphModule(module, _in_other_mode(module)))
    except Exception as error:  # whatever a forward may do with what stands for a tensor
        problem = f"torch.fx cannot follow its forward, {in_short(error)}; give {WRAPPER}"
        raise ScenarioError(problem, key=KEY, found=name) from error
    if other != _code(traced):
        problem = f"does something else in training than in evaluation; give {WRAPPER}"
        raise ScenarioError(problem, key=KEY, found=name)
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    if len(inputs) != 1:
        problem = f"takes {len(inputs)} inputs, and samples are one tensor"
        raise ScenarioError(problem, key=KEY, found=name)
    _follow_training(traced, name)
    _propagate(traced, input_shape, name)
    stretches = _layers(traced, _stretches(graph, name))
    if len(stretches) < 2:
        problem = f"can be cut nowhere: no single tensor carries all that follows; give {WRAPPER}"
        raise ScenarioError(problem, key=KEY, found=name)
    names = _names(traced, stretches)
    return nn.Sequential(OrderedDict(zip(names, (_module(traced, nodes) for nodes in stretches), strict=True)))


def _in_other_mode(module: nn.Module) -> fx.Graph:
    """Follow a module in evaluation if it trains, and the other way round; its modules are as they were afterwards."""
    modes = {inner: inner.training for inner in module.modules()}
    try:
        return _Tracer().of_samples(module.train(not module.training))
    finally:
        for inner, mode in modes.items():
            inner.training = mode


def _code(traced: fx.GraphModule) -> str:
    """Return what is done, but for the arguments that say whether it is training."""
    return re.sub(r"training = \w+", "", traced.code)


def _follow_training(traced: fx.GraphModule, name: str) -> None:
    """Put modules in the place of functions whose argument `training` was noted as it was when they were followed."""
    for node in list(traced.graph.nodes):
        if node.op != "call_function" or "training" not in node.kwargs:
            continue
        if node.target not in DROPOUTS:
            called = getattr(node.target, "__name__", node.target)
            problem = f"calls {called} with training=..., which would stay as it is now; use a module in its place"
            raise ScenarioError(problem, key=KEY, found=name)
        p = node.kwargs.get("p", node.args[1] if len(node.args) > 1 else 0.5)
        target = f"dropout_of_{node.name}"
        traced.add_submodule(target, DROPOUTS[node.target](p))
        with traced.graph.inserting_before(node):
            put = traced.graph.call_module(target, (node.args[0] if node.args else node.kwargs["input"],))
        node.replace_all_uses_with(put)
        traced.graph.erase_node(node)


def _propagate(traced: fx.GraphModule, input_shape: Shape, name: str) -> None:
    """Note what every node gives for two samples; sequences are tried as numbers and as tokens."""
    device = next((weight.device for weight in traced.parameters()), torch.device("cpu"))
    kinds = (torch.float32, torch.int64) if len(input_shape) == 1 else (torch.float32,)
    mode = traced.training
    traced.eval()
    for kind in kinds:
        try:
            with torch.no_grad():
                _Noting(traced).run(torch.zeros(2, *input_shape, dtype=kind, device=device))
        except Exception as error:  # whatever layers do with such samples
            problem = (
                f"cannot take samples of shape {'x'.join(map(str, input_shape))}: {str(error).partition(chr(10))[0]}"
            )
            failure = ScenarioError(problem, key=KEY, found=name)
        else:
            traced.train(mode)
            return
    raise failure


def _stretches(graph: fx.Graph, name: str) -> list[list[fx.Node]]:
    """Split the nodes between the input and the output where one tensor alone is needed later."""
    order = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    (output,) = (node for node in graph.nodes if node.op == "output")
    if not isinstance(output.args[0], fx.Node) or not _is_tensor(output.args[0]):
        problem = "must give one tensor, not several; return the one that is trained"
        raise ScenarioError(problem, key=KEY, found=name)
    uses = {node: sum(user.op != "output" for user in node.users) for node in graph.nodes}  # that are still to come
    uses[output.args[0]] += 1
    stretches: list[list[fx.Node]] = [[]]
    alive = {node for node in graph.nodes if node.op == "placeholder" and uses[node]}
    for node in order:
        stretches[-1].append(node)
        for source in node.all_input_nodes:
            uses[source] -= 1
        alive = {known for known in (*alive, node) if uses[known]}
        if alive == {node} and _is_tensor(node):
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def _is_tensor(node: fx.Node) -> bool:
    return bool(node.meta["is tensor"])


def _layers(traced: fx.GraphModule, stretches: Sequence[list[fx.Node]]) -> list[list[fx.Node]]:
    """Join stretches without a matrix of weights to the one before, and those before the first to the first."""
    layers: list[list[fx.Node]] = []
    for stretch in stretches:
        has_matrix = any(weight.ndim > 1 for node in stretch for weight in _weights(traced, node))
        if has_matrix and (not layers or any(_weights(traced, node) for node in layers[-1])):
            layers.append(list(stretch))
        elif layers:
            layers[-1] += stretch
        else:
            layers.append(list(stretch))
    return layers


def _weights(traced: fx.GraphModule, node: fx.Node) -> list[nn.Parameter]:
    if node.op == "call_module":
        return list(traced.get_submodule(str(node.target)).parameters())
    if node.op == "get_attr":
        attribute = operator.attrgetter(str(node.target))(traced)
        return [attribute] if isinstance(attribute, nn.Parameter) else []
    return []


def _names(traced: fx.GraphModule, layers: Sequence[Sequence[fx.Node]]) -> list[str]:
    """Name each layer by what the paths of its modules with matrices have in common, with `_` for dots."""
    names: list[str] = []
    for nodes in layers:
        called = [node for node in nodes if node.op == "call_module"]
        called = called or [node for node in nodes if node.op == "get_attr"]
        weighty = [node for node in called if any(weight.ndim > 1 for weight in _weights(traced, node))]
        paths = [str(node.target).split(".") for node in weighty or called] or [[nodes[0].name]]
        common = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False))]
        name = "_".join(common or paths[0])
        names.append(next(free for n in range(len(names) + 2) if (free := f"{name}_{n}" if n else name) not in names))
    return names


def _module(traced: fx.GraphModule, nodes: Sequence[fx.Node]) -> nn.Module:
    """Make the module of a layer: the module itself if it is one, or else a part of the graph."""
    if len(nodes) == 1 and nodes[0].op == "call_module":
        return traced.get_submodule(str(nodes[0].target))
    graph = fx.Graph()
    inside = set(nodes)
    outside = dict.fromkeys(source for node in nodes for source in node.all_input_nodes if source not in inside)
    copies = {source: graph.placeholder(source.name) for source in outside}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[nodes[-1]])
    return Stretch(traced, graph)
