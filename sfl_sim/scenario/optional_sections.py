"""Sections of a scenario that are switched off unless they are given: codecs, adapters, defences and attacks, power,
shared links, clients that come and go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.fields import (
    Count,
    Decided,
    NonNegative,
    OnlyWith,
    Option,
    PerClient,
    Positive,
    PositiveShare,
    Section,
    Unless,
)

SHORT: Mapping[str, Mapping[str, Any]] = {f"int{bits}": {"kind": "int", "bits": bits} for bits in (8, 4, 2)}
"""Names that stand for a kind of codec with an option."""


class Coding(Section):
    """A codec: its name alone, or a section with its options."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Option] = Field(init=False)

    kind: Annotated[str, Field(min_length=1)]
    """Kind of codec, or one of your own: package.module:Codec."""

    @property
    def options(self) -> dict[str, Any]:
        """The codec's own options, as the scenario gives them."""
        return dict(self.__pydantic_extra__)

    @model_validator(mode="before")
    @classmethod
    def _spell_out(cls, value: object) -> object:
        if isinstance(value, str):
            value = {"kind": value}
        if not isinstance(value, Mapping) or str(value.get("kind")) not in SHORT:
            return value
        short = SHORT[str(value["kind"])]
        given = {**short, **value, "kind": short["kind"]}
        for key, wanted in short.items():
            if given[key] != wanted:
                raise ScenarioError(f"is {wanted} in {value['kind']}", key=key, found=given[key], allowed=[wanted])
        return given

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler.resolve_ref_schema(handler(schema))]}


class WireSection(Section):
    """Codecs of what clients and server send each other; none by default."""

    up: Coding | None = None
    """Codec of what goes up to the server in a mini-batch: a name, or a section; none: it is sent as it is."""
    down: Coding | None = None
    """Codec of the gradients that come back. What `up` has not sent comes back in no case."""
    update: Coding | None = None
    """Codec of what a client has learned, in its upload of a model."""
    error_feedback: Annotated[bool, Unless("update", None)] = False
    """Send what an update has lost with the client's next one."""
    at_inference: bool = True
    """Evaluate the trained model, and serve it, through the codec `up`."""

    @model_validator(mode="before")
    @classmethod
    def _none_is_null(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {key: None if codec in ("none", {"kind": "none"}) else codec for key, codec in value.items()}


class LoraSection(Section):
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


class Noise(Section):
    """Noise on the tensors of a message, sample by sample. It is no proof of differential privacy."""

    clip: Positive | None = None
    """Largest Euclidean norm of a sample: longer ones are made so short before noise is added; null: all stay."""
    sigma: NonNegative = 0.0
    """Standard deviation of the normal noise on every element: in lengths of clip, or by itself without clip."""

    @model_validator(mode="after")
    def _does_something(self) -> Noise:
        if self.clip is None and not self.sigma:
            raise ScenarioError("needs clip or sigma, without which it does nothing", key="sigma", found=0.0)
        return self


class Privacy(Section):
    """Defences of what crosses the cut; none by default."""

    noise: Noise | None = None
    """Noise on what goes up to the server in a mini-batch, before its codec: a section; null: none."""
    gradient_noise: Noise | None = None
    """Noise on the gradients that come back, before their codec: a section; null: none."""
    nopeek: NonNegative = 0.0
    """Weight of NoPeek's penalty, the distance correlation between a mini-batch and its activations at the cut, in the
    loss of part-1; 0: none."""


class Leakage(Section):
    """Attacks on what crosses the cut, which measure what it gives away; they do not change training."""

    rounds: list[Count] = Field(default=[])
    """Rounds after which it is measured, besides the last one."""
    samples: Annotated[Count, Field(ge=10)] = 500
    """Number of training samples that are attacked, equally many of each client that is not auxiliary."""
    aux_share: PositiveShare = 0.1
    """Share of the training samples, those of some clients, that the attacker knows and learns from."""
    epochs: Annotated[Count, OnlyWith("attacks", "inversion")] = 30
    """Passes of the attacker's decoder over the samples that it knows."""
    attacks: Annotated[list[Literal["inversion", "dependence", "labels"]], Field(min_length=1)] = Field(
        default=["inversion", "dependence", "labels"]
    )
    """Attacks: inversion by a trained decoder, dependence (distance correlation), labels from gradients."""


class PowerSection(Section):
    """Power of devices and radios; with it, a run reports energy."""

    one_of = (("radio",), ("uplink_w", "downlink_w"))

    compute_w: Positive | PerClient
    """Watts while a device computes: one number for all clients, a list of one for each, or a CSV file."""
    radio: str | None = None
    """Power of the radio while it sends or receives: a power profile's name or file."""
    uplink_w: Positive | PerClient | None = None
    """Watts while a client sends, instead of a radio: one number for all clients, a list of one for each, or a CSV
    file."""
    downlink_w: Positive | PerClient | None = None
    """Watts while a client receives, instead of a radio: one number for all clients, a list of one for each, or a CSV
    file."""
    idle_w: NonNegative = 0.0
    """Watts while a client that takes part in a round waits."""


class UpAndDown(Section):
    """A capacity that differs between the directions."""

    up: Positive
    """Bits per second towards the server."""
    down: Positive
    """Bits per second towards the clients."""


class Overhead(Section):
    """What protocols add to a message on its way: time on the links, not bytes in the tables."""

    share: NonNegative = 0.0
    """Share of its bytes: 0.05 for headers of TCP and Ethernet."""
    message_bytes: NonNegative = 0.0
    """Bytes that every message carries beyond its own."""


class Shared(Section):
    """Links that clients share, beyond their own ones; messages get max-min fair shares of them."""

    one_of = (("access_points",), ("file",))
    capacities: ClassVar = ("capacity_bps", "backhaul_bps")

    access_points: Count | None = None
    """Number of access points, over which the clients are spread evenly, at random."""
    capacity_bps: Positive | UpAndDown | None = None
    """Bits per second of each access point: a number, or a section with up and down; null means without a limit."""
    duplex: Annotated[Literal["half", "full"] | None, Unless("capacity_bps", None)] = None
    """half: an access point sends and receives in turn, as Wi-Fi does, so that both directions share capacity_bps;
    full: each direction has all of it; null: half, unless capacity_bps has an up and a down."""
    backhaul_bps: Positive | UpAndDown | None = None
    """Bits per second between all access points together and the server, in each direction: as for capacity_bps."""
    file: str | None = None
    """Graph of your own, instead: a CSV file with the columns from, to, capacity_bps and, if you like, latency_s; or
    GraphML or node-link JSON of networkx with edges that have these."""

    @classmethod
    def excluded_by(cls, key: str) -> set[str]:
        """Return the keys that are removed when a grid or the command line sets `key`."""
        return {*super().excluded_by(key), *(cls.capacities if key == "file" else ())}

    @model_validator(mode="after")
    def _is_one_graph(self) -> Shared:
        given = [name for name in self.capacities if getattr(self, name) is not None]
        if self.file is not None:
            if given:
                raise ScenarioError("cannot be given together with a file", key=given[0])
        elif self.duplex == "half" and isinstance(self.capacity_bps, UpAndDown):
            raise ScenarioError("needs one capacity, which both directions share", key="duplex", found="half")
        elif not given:
            raise ScenarioError(f"share nothing without {' or '.join(self.capacities)}", key="access_points")
        return self


class Availability(Section):
    """Presence of clients, and the treatment of a client that goes away, or is late, while it takes part in a round."""

    profile: str | None = None
    """Availability of clients: a profile's name or file; null: always, so that only a deadline makes them drop out."""
    lost: Annotated[Literal["drop", "wait", "deadline"], Decided.BY_THE_USER] = "drop"
    """drop: a client that goes away drops out of the round, with its current operation, if the method allows it;
    wait: its operations stand still until it is back; deadline: as wait, but operations that have not ended deadline_s
    after the beginning of the round are lost."""
    deadline_s: Annotated[Positive | None, OnlyWith("lost", "deadline"), Decided.BY_THE_USER] = None
    """deadline: seconds after the beginning of a round at which it goes on without the unfinished clients."""
    begins_at_h: Annotated[float, Field(ge=0, lt=24), Unless("profile", None)] = 0.0
    """Local hour of the day at which the run begins."""

    @model_validator(mode="after")
    def _has_a_reason_to_lose_anybody(self) -> Availability:
        if self.lost == "deadline" and self.deadline_s is None:
            raise ScenarioError("must not be empty with lost: deadline", key="deadline_s")
        if self.lost != "deadline" and self.profile is None:
            raise ScenarioError("must not be empty without a deadline", key="profile")
        return self
