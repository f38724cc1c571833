"""Codecs that a scenario names: those of sfl-sim, with their options, and a user's own."""

import sys
import types

import pytest
from pydantic import Field, model_validator

from sfl_sim.build.catalogue import catalogue
from sfl_sim.build.registry import find_codec, find_method, method_options
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS, MethodOptions
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.own_code import Permission, permitted
from sfl_sim.training.codecs import CODECS, Delta, Fp16, Int, SplitFC, TopK


def found(written):
    return find_codec(parse({"wire": {"up": written}}).base.wire.up, "wire.up")


def test_codecs_come_by_name_with_their_options():
    assert found("none") is None
    assert found("int4") == Int(bits=4)
    assert found({"kind": "int8", "per": "channel"}) == Int(per="channel")
    assert found({"kind": "splitfc", "ratio": 8}) == SplitFC(ratio=8)
    assert found({"kind": "delta", "inner": "fp16"}) == Delta(inner=Fp16())
    assert found({"kind": "delta", "inner": {"kind": "topk", "keep": 0.5}}) == Delta(inner=TopK(keep=0.5))
    assert found({"kind": "delta", "inner": "none"}) == Delta()


@pytest.mark.parametrize(
    ("written", "key", "problem"),
    [
        ("int9", "wire.up.kind", "did you mean 'int"),
        ({"kind": "topk", "keeps": 0.1}, "wire.up.keeps", "did you mean 'keep'"),
        ({"kind": "topk", "keep": 3}, "wire.up.keep", "at most 1"),
        ({"kind": "int", "bits": 3}, "wire.up.bits", "2 or 4 or 8"),
        ({"kind": "delta", "inner": "intt"}, "wire.up.inner.kind", "did you mean 'int"),
        ({"kind": "delta", "inner": 5}, "wire.up.inner", "found 5"),
        ({"kind": "delta", "inner": {"kind": "int8", "bits": 4}}, "wire.up.inner.bits", "found 4"),
        ("collections:OrderedDict", "wire.up.kind", "Codec"),
        ("my_codecs:Missing", "wire.up.kind", "my_codecs"),
    ],
)
def test_a_wrong_codec_is_one_line(written, key, problem):
    with permitted(Permission(everything=True)), pytest.raises(ScenarioError) as refused:
        found(written)
    assert refused.value.key == key
    assert problem in str(refused.value)
    assert "\n" not in str(refused.value)


class Options(MethodOptions):
    need: int
    xs: list[int] = Field(default=[])

    @model_validator(mode="after")
    def _is_little(self):
        if self.need > 5:
            raise ValueError("need is too much")
        return self


@pytest.mark.parametrize(
    ("options", "key", "found"),
    [
        ({}, "method.need", None),
        ({"need": 9}, "method", {"need": 9}),
        ({"need": 1, "xs": [1, "a"]}, "method.xs.1", "a"),
        ({"need": 1, "nead": 2}, "method.nead", "nead"),
    ],
)
def test_wrong_options_of_a_method_of_ones_own_are_one_line(options, key, found):
    kind = type("Mine", (METHODS["fedavg"],), {"Options": Options})
    with pytest.raises(ScenarioError) as refused:
        method_options(kind, parse({"method": {"name": "own:Mine", **options}}).base)
    assert (refused.value.key, refused.value.found) == (key, found)
    assert refused.value.nearest == ("need" if found == "nead" else None)


def test_a_module_that_ends_the_program_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "ending.py").write_text("import sys\nsys.exit(7)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with permitted(Permission(everything=True)), pytest.raises(ScenarioError, match=r"method\.name.*ending\.py:2 "):
        find_method("ending:Mine")


def test_a_codec_of_ones_own_needs_permission(monkeypatch):
    class Mine(Fp16):
        floor: float = 0.0

    module = types.ModuleType("my_codecs")
    module.Mine = Mine
    monkeypatch.setitem(sys.modules, "my_codecs", module)
    with pytest.raises(ScenarioError, match="--allow-code"):
        found("my_codecs:Mine")
    with permitted(Permission(everything=True)):
        assert found({"kind": "my_codecs:Mine", "floor": 0.5}) == Mine(floor=0.5)


def test_the_list_of_codecs_tells_their_options():
    listed = catalogue()["codecs"]
    assert list(listed) == list(CODECS)
    for name, kind in CODECS.items():
        own = [field for field in kind.model_fields if field in kind.__annotations__]
        assert all(field in listed[name] for field in own), name


FEEDBACK = {"wire": {"update": "topk", "error_feedback": True}}
DRAWN_CUTS = {"method": "splitfed_v1", "model": {"cut": {"by": "round", "values": [1, 2]}}}


@pytest.mark.parametrize(
    ("sections", "key", "problem"),
    [
        ({"wire": {"down": "delta"}}, "wire.down", "smashed"),
        ({"wire": {"update": "splitfc"}}, "wire.update", "smashed"),
        ({"wire": {"update": {"kind": "int", "per": "channel"}}}, "wire.update.per", "channel"),
        ({"wire": {"up": "delta"}, "data": {"augment": True}}, "wire.up", r"data\.augment"),
        ({"wire": {"up": "delta"}, **DRAWN_CUTS}, "wire.up", r"model\.cut"),
        (FEEDBACK | {"lora": {"targets": ["fc"], "aggregate": "concat"}}, "wire.error_feedback", "replaces them"),
        (FEEDBACK | {"lora": {"targets": ["fc"], "aggregate": "svd"}}, "wire.error_feedback", "replaces them"),
        (FEEDBACK | DRAWN_CUTS, "wire.error_feedback", "between rounds"),
        (FEEDBACK | {"method": "dtfl"}, "wire.error_feedback", "change their tiers"),
        (
            {"wire": {"up": "int8"}, "method": {"name": "harmony"}, "model": {"name": "cnn8", "cut": 2}},
            "wire.up",
            "quantise",
        ),
    ],
)
def test_a_codec_in_the_wrong_place_is_refused_before_training(sections, key, problem):
    (variant,) = parse(sections | {"data": {"train_samples": 40, **sections.get("data", {})}}).variants
    with pytest.raises(ScenarioError, match=problem) as refused:
        Experiment(variant.scenario, None)
    assert refused.value.key == key
