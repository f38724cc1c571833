"""The question of a what-if study: a scenario, and the keys that vary."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sfl_sim.errors import ScenarioError
from sfl_sim.models.network import Network
from sfl_sim.scenario.load import Study, changed
from sfl_sim.scenario.sections import ClientCuts
from sfl_sim.scenario.vary import ALL, OPTION, Axis, Point, spread
from sfl_sim.studies.walk import Walker

CUT = "model.cut"
MODEL = ("model", "model.name", "model.factory", "model.path")


@dataclass(frozen=True)
class Question:
    """A scenario and the keys that vary.

    Attributes:
        forgiving: True if impossible points are left out, because the user has not named them (`ALL`).
    """

    study: Study
    axes: tuple[Axis, ...]
    forgiving: bool = False

    @classmethod
    def of(cls, study: Study, axes: Sequence[Axis]) -> Question:
        """Return the question with `ALL` replaced by the possible values.

        Raises ScenarioError for axes that do not fit the scenario.
        """
        if not axes:
            raise ScenarioError("nothing varies", allowed=f"{OPTION} {CUT}=all, for instance", file=OPTION)
        question = cls(study, tuple(axes))
        return cls(study, tuple(map(question._closed, axes)), any(axis.is_open for axis in axes))

    def _closed(self, axis: Axis) -> Axis:
        if not axis.is_open:
            return axis
        if not self.has_one_model:
            raise ScenarioError("has other cuts in other models: list them", key=CUT, found=ALL, file=OPTION)
        if not self.walker.experiment.method.is_split:
            name = self.study.variants[0].scenario.method.name
            raise ScenarioError(f"{name} is not split", key=CUT, found=ALL, file=OPTION)
        return replace(axis, values=tuple(range(1, len(self.network))))

    @property
    def has_one_model(self) -> bool:
        """True if the layers are the same at all points."""
        used = [variant.scenario.model for variant in self.study.variants]
        models = {(model.name, model.factory, model.path) for model in used}
        return len(models) == 1 and not any(axis.key in MODEL for axis in self.axes)

    @cached_property
    def walker(self) -> Walker:
        """Walker of the scenario as it is."""
        variant = self.study.variants[0]
        with variant.places.locating():
            return Walker(variant.scenario)

    @property
    def network(self) -> Network:
        """Network of the scenario as it is."""
        return self.walker.experiment.method.task.network

    @cached_property
    def points(self) -> list[Point]:
        """The points, in the order of the tables."""
        return list(spread(self.study, self.axes))

    def describe(self) -> list[dict[str, Any]]:
        """Return the axes as in whatif.json."""
        return [
            {"key": axis.key, "values": list(axis.values), "names": [self._name(axis.key, v) for v in axis.values],
             "base": self.base(axis)}
            for axis in self.axes
        ]  # fmt: skip

    def base(self, axis: Axis) -> int | None:
        """Return the index of the scenario's own value; None if it is not among the values."""
        own = self.study.base
        for index, value in enumerate(axis.values):
            if self._is_layer(axis.key, value) and not isinstance(own.model.cut, ClientCuts):
                if self.network.cut_at(value) == self.network.cut_at(own.model.cut):
                    return index
            elif changed(own, {axis.key: value}, self.study.variants[0].places) == own:
                return index
        return None

    def _is_layer(self, key: str, value: Any) -> bool:
        """Return True if the value means a layer that has one name at all points."""
        return key == CUT and not isinstance(value, dict) and self.has_one_model

    def _name(self, key: str, value: Any) -> str:
        if self._is_layer(key, value):
            return self.network.layers[self.network.cut_at(value) - 1].name
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
