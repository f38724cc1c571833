"""Models of torchvision and timm by name, `torchvision:resnet18`, with weights of a local file if there is one."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import nn

from sfl_sim.errors import IS_POINTER, ScenarioError, unreadable
from sfl_sim.models.layers import Shape

NESTING = "state_dict", "model_state_dict", "model"
"""Names under which training programs store weights, beside what else they store."""
MAX_TOLD = 3
"""Number of names of weights that an error shows."""


@dataclass(frozen=True)
class LibraryModel:
    """Model of a library, made anew for samples and labels.

    Attributes:
        name: `LIBRARY:MODEL`.
        path: file with the weights, a state dict as torch.save or safetensors writes it; None: random ones.
    """

    name: str
    path: str | None = None

    def __str__(self) -> str:
        return self.name

    def __call__(self, input_shape: Shape, n_labels: int) -> nn.Module:
        """Make the model. Raises ScenarioError if there is none, its library is missing, or weights do not fit."""
        model = self.made(input_shape, n_labels)
        if self.path is not None and torch.get_default_device().type != "meta":
            self._load(model)
        return model

    def made(self, input_shape: Shape, n_labels: int) -> nn.Module:
        """Make the model with random weights."""
        library, _, name = self.name.partition(":")
        made: nn.Module
        if library == "torchvision":
            from torchvision import models

            if name not in models.list_models(models):
                raise ScenarioError("is no classifier of torchvision", key="model.name", found=self.name,
                                    allowed=models.list_models(models))  # fmt: skip
            made = models.get_model(name, weights=None, num_classes=n_labels)
            return made
        try:
            import timm
        except ModuleNotFoundError as error:
            raise ScenarioError("needs timm: pip install timm", key="model.name", found=self.name) from error
        if name not in timm.list_models():
            raise ScenarioError("is no model of timm", key="model.name", found=self.name, allowed=timm.list_models())
        made = timm.create_model(name, pretrained=False, num_classes=n_labels, in_chans=input_shape[0])
        return made

    def _load(self, model: nn.Module) -> None:
        """Set the weights to those of the file; those of a last layer for other labels are left as they are drawn."""
        wanted = model.state_dict()
        stored = _unwrapped(_read(str(self.path)), wanted)
        unlike = [name for name in wanted if name not in stored or stored[name].shape != wanted[name].shape]
        head = list(wanted)[-1].rpartition(".")[0]
        others = [name for name in stored if name not in wanted]
        if any(not name.startswith(f"{head}.") for name in (*unlike, *others)):
            problem = f"{self.path} has other weights than {self.name}"
            seen, needed = _told(stored, others or unlike), _told(wanted, unlike or wanted)
            raise ScenarioError(problem, key="model.path", found=seen, allowed=needed)
        model.load_state_dict({name: stored[name] for name in wanted if name not in unlike}, strict=False)


def _read(path: str) -> Mapping[str, Any]:
    """Read a state dict without running code that the file names. Raises ScenarioError if it cannot be read."""
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            return load_file(Path(path).expanduser())
        state = torch.load(Path(path).expanduser(), weights_only=True, map_location="cpu")
    except Exception as error:  # of a damaged file
        problem = unreadable(path, error)
        if isinstance(error, UnpicklingError) and problem != IS_POINTER:
            problem = (
                "holds more than tensors, or nothing of torch's; torch.save(model.state_dict(), FILE) stores weights"
            )
        raise ScenarioError(problem, key="model.path", found=path) from error
    while isinstance(state, Mapping) and not _are_weights(state):
        inner = {name: value for name, value in state.items() if isinstance(value, Mapping)}
        nested = [inner[name] for name in NESTING if name in inner] or [
            value for value in inner.values() if value and _are_weights(value)
        ]
        if len(nested) != 1 and not inner.keys() & {*NESTING}:
            break
        state = nested[0]
    if not (isinstance(state, Mapping) and _are_weights(state)):
        held = ", ".join(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
        raise ScenarioError(f"{path} holds no state dict", key="model.path", found=held)
    return state


def _are_weights(state: Mapping[str, Any]) -> bool:
    return all(isinstance(value, torch.Tensor) for value in state.values())


def _unwrapped(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the weights below the prefix that a wrapper has put before all wanted names, such as `module.`.

    What has no such prefix is not the model's. If there is no such prefix, or several, all is returned.
    """
    name = next(iter(wanted))
    prefixes = [other.removesuffix(name) for other in stored if other.endswith(f".{name}")]
    if name in stored or len(prefixes) != 1:
        return stored
    return {other.removeprefix(prefixes[0]): value for other, value in stored.items() if other.startswith(prefixes[0])}


def _told(weights: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return the first of these names, with the shapes of those that are there."""
    known = [f"{name} {'x'.join(map(str, weights[name].shape))}" for name in names if name in weights] or ["none"]
    return ", ".join(known[:MAX_TOLD]) + (f" and {len(known) - MAX_TOLD} more" if len(known) > MAX_TOLD else "")
