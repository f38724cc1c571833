"""Cache keys: a digest of everything that decides the content of a trial, by which finished trials are found."""

from __future__ import annotations

import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path

from sfl_sim.build.code_version import code_version
from sfl_sim.build.dealing import dataset_of
from sfl_sim.build.initial import model_files
from sfl_sim.data.dataset import Dataset
from sfl_sim.installed import paths
from sfl_sim.runs.own_sources import own_sources
from sfl_sim.scenario.concerns import without
from sfl_sim.scenario.fields import Concern
from sfl_sim.scenario.own_code import texts
from sfl_sim.scenario.sections import Scenario
from sfl_sim.store.files import read_regular

NOT_STORED = {Concern.SHOWING}
"""Concerns of a scenario that do not change what its trials store."""


def trial_key(scenario: Scenario, meaning: str, *, pixels: bool = True) -> str:
    """Return 32 hex digits, equal for two trials with equal content.

    The key covers the scenario without the keys that concern pages alone, the data set, the content of files that the
    scenario names, the code, a user's own code with what it imports from its own folder, and the `meaning` of the
    settings. It does not cover files that a user's own code opens, or modules that it imports by names in variables.
    Without `pixels`, a published data set need not be on this machine (`dealing.deal_data`), nor initial weights.
    """
    values = without(scenario, NOT_STORED) | {"is served": scenario.serving is not None}
    files = named_files(values)
    files |= {str(path): _content(path) for path in model_files(scenario.model, weights=pixels)}
    sources = {path: own_sources(path.partition(":")[0]) for path in paths(texts(values))}
    content = [values, _digest(dataset_of(scenario.data, pixels=pixels)), files, sources, code_version(), meaning]
    canonical = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def named_files(values: object) -> dict[str, str]:
    """Return the digests of the files that texts in nested mappings and lists name, by text."""
    named = {text: Path(os.path.expanduser(text)) for text in texts(values)}
    return {text: _content(path) for text, path in named.items() if os.path.isfile(path)}


def own_code(scenario: Scenario) -> dict[str, str]:
    """Return the digests, by file, of a user's own code that a scenario names, and of what it imports beside it."""
    modules = {path.partition(":")[0] for path in paths(texts(without(scenario, NOT_STORED)))}
    return {file: digest for module in sorted(modules) for file, digest in own_sources(module).items()}


def names_own_code(scenario: Scenario) -> bool:
    """Return True if a scenario names code that is not sfl-sim's, or an object passed from Python."""
    return bool(paths(texts(without(scenario, NOT_STORED))))


@lru_cache(maxsize=2)
def _digest(dataset: Dataset) -> str:
    return dataset.digest()


def _content(path: Path) -> str:
    return hashlib.blake2b(read_regular(path), digest_size=16).hexdigest()
