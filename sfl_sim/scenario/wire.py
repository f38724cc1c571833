"""Section of a scenario about codecs: what messages between clients and server are coded by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.fields import Option, Section

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
        for key, told in short.items():
            if given[key] != told:
                raise ScenarioError(f"is {told} in {value['kind']}", key=key, found=given[key], allowed=[told])
        return given

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler.resolve_ref_schema(handler(schema))]}


class Wire(Section):
    """Codecs of what clients and server send each other; none by default."""

    up: Coding | None = None
    """Codec of what goes up to the server in a mini-batch: a name, or a section; none: it is sent as it is."""
    down: Coding | None = None
    """Codec of the gradients that come back. What `up` has not sent comes back in no case."""
    update: Coding | None = None
    """Codec of what a client has learned, in its upload of a model."""
    error_feedback: bool = False
    """Send what an update has lost with the client's next one."""
    at_inference: bool = True
    """Evaluate the trained model, and serve it, through the codec `up`."""

    @model_validator(mode="before")
    @classmethod
    def _none_is_null(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {key: None if one == "none" else one for key, one in value.items()}

    @model_validator(mode="after")
    def _has_errors(self) -> Wire:
        if self.error_feedback and self.update is None:
            raise ScenarioError(
                "there are no updates that lose anything without wire.update", key="error_feedback", found=True
            )
        return self
