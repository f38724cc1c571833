"""A name of a class or type means one thing in the package, and a method that is nobody else's says what it does."""

import ast
from collections import defaultdict
from itertools import chain
from pathlib import Path

import sfl_sim

PACKAGE = Path(sfl_sim.__file__).parent


def defined_types(source):
    """Return (name, text) of each class and alias of types at the top of a module; equal aliases have equal texts."""
    types = []
    for node in ast.parse(source).body:
        match node:
            case ast.ClassDef(name=name):
                types.append((name, object()))
            case ast.Assign(targets=[ast.Name(id=name)]) if name.lstrip("_")[:1].isupper() and not name.isupper():
                types.append((name, ast.unparse(node.value)))
    return types


def doubles(sources):
    """Return the names that stand for two things, and the modules that define them, from the text of each module."""
    found = defaultdict(dict)
    for module, source in sources.items():
        for name, text in defined_types(source):
            found[name.lstrip("_")].setdefault(text, []).append(module)
    return {name: sorted(chain.from_iterable(texts.values())) for name, texts in found.items() if len(texts) > 1}


def test_no_class_or_type_has_the_name_of_another_one():
    assert doubles({str(file.relative_to(PACKAGE)): file.read_text("utf-8") for file in PACKAGE.rglob("*.py")}) == {}


def test_two_classes_of_a_name_are_seen_and_equal_aliases_are_not():
    sources = {
        "a": "class Tier: ...\nInts = list[int]\nLIMIT = 3",
        "b": "class _Tier: ...\nInts = list[int]\nLIMIT = 4",
        "c": "Shape = tuple[int]",
        "d": "Shape = tuple[float]",
    }
    assert doubles(sources) == {"Tier": ["a", "b"], "Shape": ["c", "d"]}


def overrides(method, owner, classes):
    """Return whether a base of a class has the method, or may have it: one from outside that holds any."""
    bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in owner.bases]
    ours = [classes[base] for base in bases if base in classes]
    return {*bases} - {*classes, "ABC", "BaseModel", "Generic", "NamedTuple", "Protocol"} or any(
        method in [part.name for part in base.body if isinstance(part, ast.FunctionDef)]
        or overrides(method, base, classes)
        for base in ours
    )


def test_a_public_method_that_overrides_none_has_a_docstring():
    """Ruff (D102) would ask it of overrides, too: it knows them by `@override` alone."""
    trees = [ast.parse(file.read_text("utf-8")) for file in PACKAGE.rglob("*.py")]
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    silent = [
        (owner, part.name)
        for owner in classes.values()
        for part in owner.body
        if isinstance(part, ast.FunctionDef) and not ast.get_docstring(part)
    ]
    public = [(owner, name) for owner, name in silent if not (owner.name.startswith("_") or name.startswith("_"))]
    assert [f"{owner.name}.{name}" for owner, name in public if not overrides(name, owner, classes)] == []
