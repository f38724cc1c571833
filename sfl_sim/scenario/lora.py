"""Section of a scenario about LoRA: adapters of low rank on frozen weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from sfl_sim.scenario.fields import Count, Positive, Section


class Lora(Section):
    """Adapters of low rank, with which all other weights are frozen."""

    rank: Count = 4
    """Rank r of the adapters."""
    alpha: Positive = 8.0
    """Factor on what an adapter adds, over its rank: W = W0 + alpha / r * B A."""
    targets: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] = Field(default=["q", "v"])
    """Weight matrices that get an adapter: names such as q, k, v, o, ff1, ff2, or of a module with all its matrices;
    block3.q is the one in block3 alone."""
    aggregate: Literal["separate", "ffa", "concat", "svd"] = "separate"
    """Aggregation of the clients' adapters: A and B each by itself, which is inexact; of B alone, where A stays as it
    was drawn; or of the products B A, which are added to the frozen weights before new adapters are drawn (`concat`),
    or approximated by a product of the same rank (`svd`)."""
    preinstalled: bool = False
    """Clients hold their frozen layers from the start; else these are sent to every client before the first round."""
    frozen_dtype: Literal["float32", "bf16"] = "float32"
    """Type in which clients receive and hold frozen weights; a part of prices alone."""
