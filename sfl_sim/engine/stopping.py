"""Early end of a training: by the rules of `train.stop`, or by a user's own function after each round."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from sfl_sim.build.registry import named
from sfl_sim.engine.walk import Round
from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.scores import SCORES, VALIDATION
from sfl_sim.scenario.sections import TrainSection

SAYS_SO = "on_round_end says so"
_ARTICLES = {"accuracy": "an ", "validation accuracy": "a "}


class Stopping:
    """Decides after each round whether it was the last.

    Rounds that a resumed run takes over are counted, but not shown to the user's function again.

    Args:
        train: settings of training.

    Raises ScenarioError if the scenario names a function that cannot be called.
    """

    def __init__(self, train: TrainSection) -> None:
        self.rules = train.stop
        self._best, self._best_round = -math.inf, 0
        given = train.on_round_end or []
        self._on_round_end = [_function(path) for path in ([given] if isinstance(given, str) else given)]

    def why(
        self, round: Round, experiment: object, next_begins_s: Callable[[], float], *, is_new: bool = True
    ) -> str | None:
        """Return why training ends with this round; None if it goes on.

        Args:
            experiment: what the user's function gets beside the round.
            next_begins_s: gives the instant at which the next round could begin.
            is_new: False if a resumed run takes the round over.
        """
        reason = self._by_rules(round.row, next_begins_s)
        if is_new and any(look(round, experiment) for look in self._on_round_end):  # all of them are called
            return SAYS_SO
        return reason

    def _by_rules(self, row: Mapping[str, Any], next_begins_s: Callable[[], float]) -> str | None:
        """Say which rule ends training with the round of `row`."""
        name = next((name for name in SCORES if row.get(name) is not None), SCORES[0])
        rules, accuracy = self.rules, row[name]
        if row.get(VALIDATION) is not None:
            name, accuracy = f"validation {name}", row[VALIDATION]
        if rules is None:
            return None
        if rules.time_s is not None and next_begins_s() >= rules.time_s:
            return f"{rules.time_s:g} s have passed"
        if accuracy is None:
            return None
        if accuracy > self._best:
            self._best, self._best_round = accuracy, row["round"]
        if rules.accuracy is not None and accuracy >= rules.accuracy:
            return f"{_ARTICLES.get(name, '')}{name} of {rules.accuracy:g} is reached"
        if rules.patience is not None and row["round"] - self._best_round >= rules.patience:
            return f"no better {name} in {rules.patience} rounds"
        return None


def _function(path: str) -> Callable[[Round, object], object]:
    look: Callable[[Round, object], object] = named(path, {}, "train.on_round_end")
    if not callable(look):
        raise ScenarioError("is no function", key="train.on_round_end", found=path)
    return look
