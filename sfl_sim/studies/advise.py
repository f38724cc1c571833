"""Advice on where to cut a model: the cut for all clients, or one for each, with the shortest rounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario.grid import points
from sfl_sim.scenario.load import Study
from sfl_sim.studies.advise_variant import CUT, Adviser, Wish
from sfl_sim.studies.cut_limits import check_accuracy

Notify = Callable[[int, int], None]
"""Called with the walks that are done, and how many there will be at most as far as is known."""


@dataclass(frozen=True)
class Advice:
    """Which cuts give the shortest rounds.

    Attributes:
        choices: one row per variant of the scenario's grid. `series`: its name. `cut`: the choice, missing where
            clients have several. `setting`: key and value that put it into the scenario. `round_s`, `own_round_s`: the
            mean round by the clock, and that of the scenario as it is. `next_cut`, `next_round_s`: the best other cut
            for all clients. `bound_s`: what no assignment of cuts to clients undercuts (`Bound`); NaN if unknown, or if
            the method has one cut for all. `gap`: by which share of it `round_s` lies above. `how` it was searched.
            `notes`: sentences.
        cuts: one row per variant and cut. `series`, `cut`, `name`. `round_s` with this cut for all clients.
            `memory_bytes` of a client, `accuracy` recorded: NaN if nobody asked or nothing tells. `left_out`: why it
            was; None if it was not.
        clients: one row per variant and client: `series`, `client`, `device`, rates (of the first seed), chosen `cut`.
    """

    choices: pd.DataFrame
    cuts: pd.DataFrame
    clients: pd.DataFrame


def find_advice(study: Study, wish: Wish, notify: Notify) -> Advice:
    """The cuts with the shortest mean round, in the median over seeds, for every variant of the grid.

    One cut for all: every cut is walked. Cuts per client: all assignments are walked if they are few, else a
    `Heuristic` begins with the best cut for all. Cuts that the wish rules out are not walked.

    Raises ScenarioError for a scenario without a cut to choose, and for what cannot be had.
    """
    check_accuracy(wish.accuracy, wish.runs)
    if any(key == CUT or key.startswith(f"{CUT}.") for point in points(study.base.grid) for key in point):
        raise ScenarioError("the scenario's grid sets it; leave it out there, as in --set 'grid={...}'", key=CUT)
    count = _Count(notify)
    found = {}
    for name, group in itertools.groupby(study.variants, key=lambda variant: variant.name):
        variants = list(group)
        try:
            found[name] = Adviser([v.scenario for v in variants], name, wish, count.expect, count.step).advise()
        except ScenarioError as error:
            raise variants[0].places.located(error) from error
    choices = pd.DataFrame([{"series": name, **choice} for name, (choice, _, _) in found.items()])
    return Advice(
        choices.assign(gap=choices["round_s"] / choices["bound_s"] - 1).astype({"cut": "Int64", "next_cut": "Int64"}),
        _joined({name: cuts for name, (_, cuts, _) in found.items()}),
        _joined({name: clients for name, (_, _, clients) in found.items()}),
    )


def _joined(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(tables, names=["series"]).reset_index("series").reset_index(drop=True)


class _Count:
    """Counts walks for `notify`."""

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._done = self._expected = 0

    def expect(self, walks: int) -> None:
        """So many more will come at most."""
        self._expected = self._done + walks

    def step(self) -> None:
        self._done += 1
        self._notify(self._done, max(self._done, self._expected))
