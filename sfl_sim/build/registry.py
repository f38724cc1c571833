"""Registry of the names that a scenario may use: of sfl-sim, of installed packages, and `package.module:name`."""

from collections.abc import Mapping, Sequence
from functools import wraps
from importlib.metadata import EntryPoint
from typing import Any

import pydantic

from sfl_sim.build.catalogue import NO_NAME, unknown_option
from sfl_sim.errors import ScenarioError, calling_theirs
from sfl_sim.installed import find, imported, is_of_library
from sfl_sim.methods import METHODS, Method
from sfl_sim.methods.cut_policies import CUT_POLICIES, CutPolicy, PolicyInput
from sfl_sim.models.hugging_face import HuggingFace
from sfl_sim.models.libraries import LibraryModel
from sfl_sim.models.zoo import Given, as_builder
from sfl_sim.scenario.fields import with_numbers
from sfl_sim.scenario.optional_sections import SHORT, Coding, WireSection
from sfl_sim.scenario.own_code import find_object, is_object, require_permission
from sfl_sim.scenario.presets import METHOD_PRESETS, ORDER_PRESETS
from sfl_sim.scenario.problems import problems
from sfl_sim.scenario.sections import MethodSection as MethodSection
from sfl_sim.scenario.sections import ModelSection, Scenario
from sfl_sim.sim.orders import OF_RUNS, ORDERS, Order, Roster
from sfl_sim.training.codecs import CODECS, Codec, Delta


def named(name: str, table: Mapping[str, Any], key: str, kind: str = "") -> Any:
    """Return the object that a scenario names: an entry of `table`, of an installed package, or a user's own.

    Args:
        name: the name; of a user's own `package.module:thing`.
        kind: of `installed.KINDS`; empty if only a user's own can be named.

    Raises ScenarioError if there is none or if it may not run.
    """
    if name in table:
        return table[name]
    if is_object(name):
        return find_object(name, key)
    if ":" not in name:
        if kind:
            return find(kind, name, key, table, NO_NAME)
        raise ScenarioError("is not a package.module:name of your own", key=key, found=name)
    require_permission(name, key)
    return imported(EntryPoint(name, name, kind), key)


def find_model(model: ModelSection) -> Given:
    """Return a name of the zoo, a folder's, a library's or a user's own model, for `zoo.network`; or ScenarioError."""
    if is_of_library(model.name):
        return LibraryModel(str(model.name), model.path)
    if (model.name == "hf") != (model.path is not None):
        problem = (
            "needs the folder of a model" if model.name == "hf" else "is a key of hf, torchvision: and timm: models"
        )
        raise ScenarioError(problem, key="model.path", found=model.path)
    if model.path is not None:
        return HuggingFace(model.path)
    if model.factory is None:
        return str(model.name)
    thing: Given = named(model.factory, {}, "model.factory")
    as_builder(thing)
    return thing


def find_method(name: str) -> type[Method]:
    """Return the method's class. Raises ScenarioError if there is none."""
    known = METHODS | METHOD_PRESETS  # the latter are replaced, but may be suggested
    kind = named(name, known, "method.name", "methods")
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise ScenarioError("is not a subclass of sfl_sim.methods.Method", key="method.name", found=name)
    return kind


def find_order(name: str, key: str = "server.order") -> Order:
    """Return the order's function. Raises ScenarioError if there is none."""
    known = ORDERS | OF_RUNS | (ORDER_PRESETS if key == "server.order" else {})  # expanded, but may be suggested
    order: Order = named(name, known, key, "orders")
    try:
        fits = callable(order(Roster([0], {0: 1}, recorded=[0])))
    except Exception:  # a user's function may raise anything
        fits = False
    if not fits:
        raise ScenarioError("is not a function that makes a policy of a roster", key=key, found=name)
    return order


def find_cut_policy(name: str) -> CutPolicy:
    """Return the policy that a scenario names for cuts, which checks what it chooses. Raises ScenarioError if none."""
    key = "model.cut.by"
    policy = named(name, CUT_POLICIES, key)
    if not callable(policy):
        raise ScenarioError("is no function", key=key, found=name)

    @wraps(policy, updated=())
    def checked(known: PolicyInput, clients: Sequence[int]) -> dict[int, int]:
        with calling_theirs(key, name):
            chosen = dict(policy(known, clients))
            wrong = {c: cut for c, cut in chosen.items() if c not in clients or cut not in known.costs}
        if wrong:
            problem = f"must give clients {list(clients)[:9]} cuts of {known.cuts}"
            raise ScenarioError(problem, key=key, found=wrong)
        return chosen

    return checked


def method_options(kind: type[Method], scenario: Scenario) -> Any:
    """Return the scenario's keys below `method` as the method's own options."""
    return filled(kind.Options, scenario.method.options, section="method", head="name", name=scenario.method.name)


def find_codec(coding: Coding | None, key: str) -> Codec | None:
    """Return the codec that a scenario names at `key`. Raises ScenarioError if there is none, or no such option."""
    if coding is None:
        return None
    kind = named(coding.kind, {"none": None, **CODECS, **SHORT}, f"{key}.kind", "codecs")
    if not (isinstance(kind, type) and issubclass(kind, Codec)):
        problem = "is not a subclass of sfl_sim.training.codecs.Codec"
        raise ScenarioError(problem, key=f"{key}.kind", found=coding.kind)
    options = coding.options
    if kind is Delta:
        options["inner"] = find_codec(_inner_coding(options.get("inner"), f"{key}.inner"), f"{key}.inner")
    codec: Codec = filled(kind, options, section=key, head="kind", name=coding.kind)
    return codec


def _inner_coding(given: Any, key: str) -> Coding | None:
    """Read a codec within a codec, as a section `wire` would. Raises ScenarioError if it is none."""
    wire = {"up": given}
    try:
        return WireSection.model_validate(wire).up
    except pydantic.ValidationError as error:
        first = problems(error, wire, WireSection.model_json_schema())[0]
        first.key = f"{key}{str(first.key).removeprefix('up')}"
        raise first from error


def filled(kind: type[pydantic.BaseModel], options: Mapping[str, Any], section: str, head: str, name: str) -> Any:
    """Return the options of what a section names by its key `head`. Raises ScenarioError for the first wrong one."""
    try:
        return kind(**with_numbers(kind, options))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "extra_forbidden" and len(first["loc"]) == 1:
            raise unknown_option(name, f"{section}.{first['loc'][0]}", [head, *kind.model_fields]) from error
        problem = problems(error, options, kind.model_json_schema())[0]
        problem.key = ".".join(filter(None, [section, problem.key]))
        raise problem from error
