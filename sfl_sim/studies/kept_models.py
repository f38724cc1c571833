"""Stored models under the names of a user's own module: as tensors, as a module, and as files for other programs."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from sfl_sim.build.network import merged, stored_weights
from sfl_sim.build.registry import find_model
from sfl_sim.build.setup import setup_of
from sfl_sim.errors import ScenarioError
from sfl_sim.models.hugging_face import HuggingFace
from sfl_sim.models.zoo import whole_module
from sfl_sim.scenario.load import Variant, load
from sfl_sim.store.files import all_models_of, as_file_names, read_json, write_json
from sfl_sim.store.folder import check_unchanged
from sfl_sim.training.hardware import PRECISIONS

WhichRound = int | Literal["best"] | None
"""Which of the stored models; None: the last."""


class KeptModel:
    """A stored model of a variant with a seed, after one of its rounds.

    Attributes:
        parts: its tensors by number of the part, then by owner: `""`, or `client3` for a part that clients keep.

    Raises ScenarioError if the file is damaged, or of a version that did not store who keeps which part.
    """

    def __init__(self, file: Path, variant: Variant, round: int) -> None:
        self.file, self.variant, self.round = file, variant, round
        self.scenario = variant.scenario
        self.parts: dict[int, dict[str, dict[str, Tensor]]] = {}
        replicas = read_json(file.with_suffix(".json")).get("replicas")
        if replicas is None:
            raise ScenarioError(
                "is of a version that did not store who keeps which part; run it again", key="variant", found=str(file)
            )
        for name, tensor in merged(file, "variant").items():
            replica = next(each for each in replicas if name.startswith(f"{each}."))
            part, _, owner = replica.partition(".")
            given, is_turned = self._given(name.removeprefix(f"{replica}."))
            owners = self.parts.setdefault(int(part.removeprefix("part")), {})
            owners.setdefault(owner, {})[given] = tensor.T.contiguous() if is_turned else tensor

    def state_dict(self, client: int | None = None) -> dict[str, Tensor]:
        """Return all tensors, with a client's own part if clients keep one. Raises ScenarioError if it must say whose.

        Args:
            client: None: the only one.
        """
        state: dict[str, Tensor] = {}
        for owners in self.parts.values():
            wanted = next(iter(owners)) if len(owners) == 1 and client is None else f"client{client}"
            wanted = "" if "" in owners else wanted
            if wanted not in owners:
                allowed = [owner.removeprefix("client") for owner in owners]
                raise ScenarioError("must say whose of several part-1s", key="client", found=client, allowed=allowed)
            state |= owners[wanted]
        return state

    def module(self, client: int | None = None) -> nn.Module:
        """Return the module that the scenario names, uncut, with these tensors, and ready to be asked.

        Raises ScenarioError as `state_dict`, or if that module cannot be made here, or has other weights.
        """
        state = self.state_dict(client)
        if self._hugging_face:
            module = self._hugging_face.module()
        else:
            network = setup_of(self.scenario, pixels=False).method(None).task.network
            module = whole_module(find_model(self.scenario.model), network)
        module.to(PRECISIONS[self.scenario.train.precision].weights)
        try:
            module.load_state_dict(state)
        except RuntimeError as error:
            raise ScenarioError(f"makes another module than was trained: {error}", key="model.factory") from error
        return module.eval()

    def save(self, folder: Path) -> None:
        """Write safetensors: `part-1`, `part-2`, ..., the whole `model`, and `adapters/` as peft loads them.

        A part that clients keep is `part-1-client3`, and then there is no `model`. Of a model of transformers its
        config.json is beside it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for number, owners in self.parts.items():
            for owner, state in owners.items():
                if len(self.parts) > 1:
                    _save(state, folder / f"part-{number}{owner and f'-{owner}'}.safetensors")
        if all(len(owners) == 1 for owners in self.parts.values()):
            _save(self.state_dict(), folder / "model.safetensors")
            self._save_adapters(folder / "adapters")
        if self._hugging_face:
            write_json(folder / "config.json", self._hugging_face.untied_sizes)

    @cached_property
    def _hugging_face(self) -> HuggingFace | None:
        model = self.scenario.model
        return HuggingFace(str(model.path)) if model.name == "hf" else None

    @cached_property
    def _names(self) -> Mapping[str, tuple[str, bool]]:
        return self._hugging_face.given_names() if self._hugging_face else {}

    def _given(self, name: str) -> tuple[str, bool]:
        """Return the name that the user's module gives to a tensor, and whether it has the matrix transposed."""
        return self._names.get(name, (name, False))

    def _save_adapters(self, folder: Path) -> None:
        """Write trained factors alone, by what they adapt; none if the frozen weights have taken them in."""
        lora, adapters = self.scenario.lora, read_json(self.file.with_suffix(".json")).get("adapters")
        if lora is None or not adapters or lora.aggregate == "concat":
            return
        if not all(name.endswith(".parametrizations.weight.original") for name in adapters):
            return  # peft knows no thirds of torch's attention
        stored = stored_weights(self.file, "variant")
        tensors: dict[str, Tensor] = {}
        ranks: dict[str, int] = {}
        for name, several in adapters.items():
            path = name.partition(".")[2].partition(".parametrizations.")[0]
            path = self._given(f"{path}.weight")[0].removesuffix(".weight")
            frozen = stored[name]
            a = torch.cat([stored[f"{adapter['name']}.A"] for adapter in several])
            b = frozen.new_zeros(len(frozen), len(a))
            n = 0
            for adapter in several:
                factor = stored[f"{adapter['name']}.B"]
                b[slice(*adapter["rows"]), n : n + factor.shape[1]] = factor
                n += factor.shape[1]
            a, b = a.view(n, *frozen.shape[1:]), b.view(*b.shape, *[1] * (frozen.ndim - 2))
            tensors |= {f"base_model.model.{path}.lora_A.weight": a, f"base_model.model.{path}.lora_B.weight": b}
            ranks[path] = n
        folder.mkdir(exist_ok=True)
        _save(tensors, folder / "adapter_model.safetensors")
        scale = lora.alpha / lora.rank
        about = {
            "peft_type": "LORA", "task_type": "CAUSAL_LM" if self._hugging_face else None, "bias": "none",
            "base_model_name_or_path": self.scenario.model.path, "r": lora.rank, "lora_alpha": lora.alpha,
            "lora_dropout": 0.0, "target_modules": "|".join(map(re.escape, ranks)),
            "fan_in_fan_out": any(is_turned for _, is_turned in self._names.values()), "inference_mode": True,
            "rank_pattern": {path: n for path, n in ranks.items() if n != lora.rank},
            "alpha_pattern": {path: n * scale for path, n in ranks.items() if n != lora.rank},
        }  # fmt: skip
        write_json(folder / "adapter_config.json", about)


def kept_model(run: Path, variant: str | None, seed: int | None, round: WhichRound = None) -> KeptModel:
    """Return the stored model of a variant and seed.

    Args:
        variant: None: the only one.
        seed: None: the first one.
        round: None: the last one; best: the one with the best score on validation samples.

    Raises ScenarioError if there is no such model.
    """
    check_unchanged(run, "folder")
    files = all_models_of(run)
    names = list(dict.fromkeys(name for name, _ in files))
    if variant is None and len(names) == 1:
        (variant,) = names
    seeds = [each for name, each in files if name == variant]
    if not seeds:
        raise ScenarioError("has no model: name a variant", key="variant", found=variant, allowed=names or "none")
    if seed is not None and seed not in seeds:
        raise ScenarioError("was not trained", key="seed", found=seed, allowed=seeds)
    seed = min(seeds) if seed is None else seed
    rounds = files[variant, seed]
    if round == "best":
        summaries = read_json(run / "summary.json")["variants"]
        round = next(each.get("best_round") for each in summaries if (each["name"], each["seed"]) == (variant, seed))
        if round is None:
            raise ScenarioError("needs validation samples (data.validation)", key="round", found="best")
    if round is not None and round not in rounds:
        raise ScenarioError("has no stored model (report.keep)", key="round", found=round, allowed=sorted(rounds))
    last = max(rounds) if round is None else round
    trained = next(
        each for each in load(run / "scenario.yaml").variants if (each.name, each.scenario.seed) == (variant, seed)
    )
    with trained.places.locating():
        return KeptModel(rounds[last], trained, last)


def save_models(run: Path, out: Path) -> list[Path]:
    """Write all stored models of a run, each into a folder of its own below `out`, and return these folders.

    A folder is called after variant, seed and, before the last, round.

    Raises ScenarioError if the run has no models, or `out` cannot be written.
    """
    files = all_models_of(run)
    if not files:
        raise ScenarioError("has no models, as it was timing-only", key="RUN", found=str(run))
    kept = [(*trial, round, max(rounds)) for trial, rounds in files.items() for round in rounds]
    names = as_file_names(
        f"{variant}-seed{seed}" + ("" if round == last else f"-round{round}") for variant, seed, round, last in kept
    )
    return [_saved(kept_model(run, *which), out / name) for (*which, _), name in zip(kept, names, strict=True)]


def _saved(model: KeptModel, folder: Path) -> Path:
    try:
        model.save(folder)
    except OSError as error:
        raise ScenarioError(f"cannot be written: {error.strerror}", key="--export", found=str(folder.parent)) from error
    return folder


def _save(state: dict[str, Tensor], file: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, file, {"format": "pt"})
