"""The network of a scenario: its layers, with adapters if there are any, and its initial weights."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sfl_sim.build.registry import find_model
from sfl_sim.data.loading import Dataset
from sfl_sim.errors import ScenarioError, in_short
from sfl_sim.goals import Goal
from sfl_sim.installed import is_of_library
from sfl_sim.models.forward_settings import ForwardSettings, Graphs
from sfl_sim.models.hugging_face import HuggingFace
from sfl_sim.models.layers import given_name
from sfl_sim.models.lora import Lora, with_adapter
from sfl_sim.models.network import Network
from sfl_sim.models.zoo import is_weightless, network
from sfl_sim.scenario.sections import Init, ModelSection, Scenario
from sfl_sim.store.earlier import no_run
from sfl_sim.store.files import models_of, read_json, read_manifest
from sfl_sim.store.folder import check_unchanged
from sfl_sim.training.hardware import PRECISIONS

KEY = "model.init.run"


def build_network(scenario: Scenario, dataset: Dataset, above: int = 0) -> Network:
    """Build the network, with adapters, if there are any, in the layers after the first `above`."""
    shape, precision = dataset.sample_shape, PRECISIONS[scenario.train.precision]
    tokens, targets = dataset.mean is None and not dataset.x_train.is_floating_point(), dataset.targets_train
    net = network(
        find_model(scenario.model), shape, len(dataset.answers), precision.weights,
        tokens=tokens, every_token=dataset.goal is Goal.TOKENS, lora=_lora(scenario, above),
        pixels=tuple(targets.shape[1:]) if targets is not None and dataset.goal is Goal.PIXELS else (),
    )  # fmt: skip
    if tokens and net.n_tokens is not None and dataset.largest_token >= net.n_tokens:
        problem = f"has an embedding of {net.n_tokens} tokens; the largest in the samples is {dataset.largest_token}"
        raise ScenarioError(problem, key="model", found=scenario.model.name or scenario.model.factory)
    label_bytes = None if targets is None else targets[0].nbytes
    graphs = Graphs(scenario.train.max_graphs)
    return net.with_settings(ForwardSettings(autocast=precision.autocast, graphs=graphs, label_bytes=label_bytes))


def unpriced(network: Network) -> ScenarioError | None:
    """Return the warning that operations of a network have no price; None if all have."""
    names = sorted({name for layer in network.layers for name in layer.unpriced})
    if not names:
        return None
    problem = f"no price is known for {', '.join(names)}: counted as moved data; a module's method `macs` can tell it"
    return ScenarioError(problem, key="model")


def _lora(scenario: Scenario, above: int) -> Lora | None:
    """Return the settings of adapters, if there are any."""
    section = scenario.lora
    if section is None:
        return None
    return Lora(
        rank=section.rank, alpha=section.alpha, targets=tuple(section.targets), aggregate=section.aggregate,
        preinstalled=section.preinstalled, above=above,
    )  # fmt: skip


def check_can_train(model: ModelSection, device: torch.device | None) -> None:
    """Raise ScenarioError if a model that is known by its shapes alone shall train; `device` is None if nothing is."""
    if device is not None and model.factory is None and is_weightless(find_model(model)):
        raise ScenarioError(
            "is known by its shapes alone and cannot be trained: --timing-only, or sfl-sim whatif",
            key="model.path" if model.path else "model.name",
            found=model.path or model.name,
        )


def starting(network: Network, init: Init) -> Network:
    """Return the network with these initial weights. Raises ScenarioError if there is no such run of such a network."""
    if init.run is None:
        return network.starting(seed=init.seed)
    file = _final_model(init.run)

    def fill(module: nn.Sequential) -> None:
        weights = {name.partition(".")[2]: tensor for name, tensor in merged(file, KEY).items()}
        held = {name: tensor.shape for name, tensor in module.state_dict().items() if tensor.is_floating_point()}
        names = {given_name(module, name): name for name in held}
        wanted = {name: held[names[name]] for name in names}
        if {name: tensor.shape for name, tensor in weights.items() if tensor.is_floating_point()} != wanted:
            raise ScenarioError("has trained another network", key=KEY, found=init.run)
        if not next(module.parameters()).is_meta:
            module.load_state_dict({names.get(name, name): tensor for name, tensor in weights.items()}, strict=False)

    return network.starting(fill)


def stored_weights(file: Path, key: str) -> dict[str, Tensor]:
    """Return the tensors in the file of a run's model. Raises ScenarioError, with this `key`, if it is damaged."""
    try:
        return load_file(file)
    except SafetensorError as error:
        raise ScenarioError(f"is damaged: {in_short(error)}", key=key, found=str(file)) from error


def merged(file: Path, key: str) -> dict[str, Tensor]:
    """Return the tensors in the file of a run's model, by part and name, with adapters added to what they adapt.

    Raises ScenarioError, with this `key`, if it is damaged, or of a version that did not store where adapters are.
    """
    weights = stored_weights(file, key)
    adapters: Mapping[str, Any] = read_json(file.with_suffix(".json")).get("adapters", {})
    for name, several in adapters.items():
        weight = weights.pop(name)
        for adapter in several:
            a, b = (weights.pop(f"{adapter['name']}.{factor}") for factor in "AB")
            weight = with_adapter(weight, a, b, adapter["scale"], slice(*adapter["rows"]))
        weights[_ADAPTED.sub(r".\1", name)] = weight
    return weights


_ADAPTED = re.compile(r"\.parametrizations\.(\w+)\.original$")


def model_files(model: ModelSection, weights: bool) -> list[Path]:
    """Return the files that a scenario names by their folders: a config, and the initial weights if they are wanted."""
    stored = HuggingFace(model.path) if model.path and model.name == "hf" else None
    files = [stored.config] if stored else []
    if weights:
        files += [Path(model.path).expanduser()] if model.path and is_of_library(model.name) else []
        files += stored.weight_files if stored else []
        files += [_final_model(model.init.run)] if model.init and model.init.run else []
    return files


def _final_model(run: str) -> Path:
    """Return the file with the final model of a run. Raises ScenarioError if it is not finished, or has several."""
    folder = Path(run).expanduser()
    status = read_manifest(folder).get("status")
    if status is None:
        raise no_run(folder, KEY)
    if status != "complete":
        raise ScenarioError("is not finished", key=KEY, found=run)
    check_unchanged(folder, KEY)
    models = list(models_of(folder).values())
    if len(models) != 1:
        problem = f"has {len(models)} models; it needs one variant with one seed" if models else "has trained nothing"
        raise ScenarioError(problem, key=KEY, found=run)
    return models[0]
