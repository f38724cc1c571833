"""Cache keys: a digest of everything that decides the content of a trial, by which finished trials are found."""

import ast
import hashlib
import json
import os
import sys
import sysconfig
from contextlib import suppress
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from pathlib import Path
from uuid import uuid4

from sfl_sim.build.code_version import code_version
from sfl_sim.build.network import model_files
from sfl_sim.build.setup import dataset_of
from sfl_sim.data.dataset import Dataset
from sfl_sim.installed import paths
from sfl_sim.scenario.concerns import values_except
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
    Without `pixels`, a published data set need not be on this machine (`setup.deal_data`), nor initial weights.
    """
    values = values_except(scenario, NOT_STORED) | {"is served": scenario.serving is not None}
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
    modules = {path.partition(":")[0] for path in paths(texts(values_except(scenario, NOT_STORED)))}
    return {file: digest for module in sorted(modules) for file, digest in own_sources(module).items()}


def names_own_code(scenario: Scenario) -> bool:
    """Return True if a scenario names code that is not sfl-sim's, or an object passed from Python."""
    return bool(paths(texts(values_except(scenario, NOT_STORED))))


@lru_cache(maxsize=2)
def _digest(dataset: Dataset) -> str:
    return dataset.digest()


def _content(path: Path) -> str:
    return hashlib.blake2b(read_regular(path), digest_size=16).hexdigest()


@cache
def own_sources(module: str) -> dict[str, str]:
    """Return the digests of a module's source and of all that it imports from its own folder, by file.

    The source is read, not run. Empty if there is no such module; of one without a source, as in a notebook, the digest
    equals no other. An installed package is one digest of all its files: to parse those of torch takes half a minute.
    """
    package = module.partition(".")[0]
    try:
        spec = find_spec(package) if package else None
    except ValueError:  # a script or a notebook has no spec
        script = getattr(sys.modules[package], "__file__", None)
        if script is None:
            return {module: uuid4().hex}
        path = Path(script)
        module = path.stem
    else:
        if spec is None:
            return {}
        path = Path(next(iter(spec.submodule_search_locations or [str(spec.origin)])))
    root = path.parent
    if str(root) in sysconfig.get_paths().values():
        content = hashlib.blake2b(digest_size=16)
        for file in sorted(path.rglob("*.py")) or [path]:
            content.update(f"\0{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
        return {package: content.hexdigest()}
    digests: dict[str, str] = {}
    waiting = _with_packages({module})
    while waiting:
        stem = root.joinpath(*waiting.pop().split("."))
        for file in (stem.with_suffix(".py"), stem / "__init__.py"):
            name = file.relative_to(root).as_posix()
            if name not in digests and file.is_file():
                digests[name] = _source_digest(file, ".".join(file.relative_to(root).with_suffix("").parts))
                waiting |= _with_packages(_imports(file, ".".join(file.relative_to(root).parent.parts)))
    return digests


_loaded: dict[str, tuple[ModuleSpec, str]] = {}
"""Digests of a user's own modules that this process has loaded, with their specs: a reload makes another one."""


def _source_digest(file: Path, module: str) -> str:
    """Return the digest of a source; of a module that is loaded the first one, since a later edit is not what runs."""
    spec = getattr(sys.modules.get(module.removesuffix(".__init__")), "__spec__", None)
    kept = _loaded.get(module)
    if kept and kept[0] is spec:
        return kept[1]
    digest = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    if spec is not None:
        _loaded[module] = spec, digest
    return digest


def _imports(file: Path, package: str) -> set[str]:
    """Return the names of all modules that a file of a package may import."""
    modules = set()
    with suppress(SyntaxError, ValueError, ImportError):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = resolve_name("." * node.level + (node.module or ""), package)
                modules |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return modules


def _with_packages(modules: set[str]) -> set[str]:
    """Add the packages of modules, which are imported before them."""
    return {".".join(parts[: n + 1]) for parts in (module.split(".") for module in modules) for n in range(len(parts))}
