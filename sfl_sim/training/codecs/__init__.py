"""Codecs: smaller codes of the tensors that cross the cut, each with its exact size (docs/methods/codecs.md)."""

from sfl_sim.training.codecs.base import Code, Codec, Shape, of_raw, raw
from sfl_sim.training.codecs.delta import Delta
from sfl_sim.training.codecs.floats import Bf16, Fp16
from sfl_sim.training.codecs.integers import Int
from sfl_sim.training.codecs.splitfc import SplitFC
from sfl_sim.training.codecs.topk import RandTopK, TopK

__all__ = ["CODECS", "Bf16", "Code", "Codec", "Delta", "Fp16", "Int", "RandTopK", "Shape", "SplitFC", "TopK", "of_raw",
           "raw"]  # fmt: skip

CODECS: dict[str, type[Codec]] = {
    "fp16": Fp16,
    "bf16": Bf16,
    "int": Int,
    "topk": TopK,
    "randtopk": RandTopK,
    "splitfc": SplitFC,
    "delta": Delta,
}
"""The codecs by the `kind` that a scenario gives them."""
