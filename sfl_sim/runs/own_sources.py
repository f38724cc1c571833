"""Source of a user's own code, by which a run knows that it goes on with the code that it began with."""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from contextlib import suppress
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from uuid import uuid4


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
        place = getattr(sys.modules[package], "__file__", None)
        if place is None:
            return {module: uuid4().hex}
        module = Path(place).stem
    else:
        if spec is None:
            return {}
        place = next(iter(spec.submodule_search_locations or [str(spec.origin)]))
    root = Path(place).parent
    if str(root) in sysconfig.get_paths().values():
        content = hashlib.blake2b(digest_size=16)
        for file in sorted(Path(place).rglob("*.py")) or [Path(place)]:
            content.update(f"\0{file.relative_to(root).as_posix()}\0".encode() + file.read_bytes())
        return {package: content.hexdigest()}
    digests: dict[str, str] = {}
    waiting = _with_packages({module})
    while waiting:
        stem = root.joinpath(*waiting.pop().split("."))
        for file in (stem.with_suffix(".py"), stem / "__init__.py"):
            name = file.relative_to(root).as_posix()
            if name not in digests and file.is_file():
                digests[name] = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
                waiting |= _with_packages(_imports(file, ".".join(file.relative_to(root).parent.parts)))
    return digests


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
