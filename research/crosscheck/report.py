"""What a comparison has found, and how it is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from research.crosscheck.ours import Ours, State, distance


@dataclass(frozen=True)
class Found:
    """Result of one comparison.

    Attributes:
        title: what was compared.
        distances: of every round, the largest difference of weights.
        figures: of every round, the larger difference of accuracy and performance gap.
        oddity: whose oddity a difference is; empty if none is expected.
        first_other: the first round, from 1, in which the server's order is another; None if it never is.
    """

    title: str
    distances: Sequence[float]
    figures: Sequence[float] = ()
    oddity: str = ""
    first_other: int | None = None

    @classmethod
    def between(
        cls,
        title: str,
        ours: Ours,
        models: Sequence[State],
        figures: Sequence[tuple[float, float]] = (),
        oddity: str = "",
        served: Sequence[Sequence[int]] | None = None,
    ) -> Found:
        """Compare our run with their models, and, where given, with their figures and orders of service."""
        if len(models) != len(ours.models):
            raise ValueError(f"{title}: they have run {len(models)} rounds, and we {len(ours.models)}")
        distances = [distance(one, other) for one, other in zip(ours.models, models, strict=True)]
        apart = [
            max(abs(row["accuracy"] - accuracy), abs(row["performance_gap"] - gap))
            for row, (accuracy, gap) in zip(ours.rows, figures, strict=False)
        ]
        orders = enumerate(zip(ours.served, served or ours.served, strict=True), 1)
        return cls(title, distances, apart, oddity, next((n for n, (one, other) in orders if one != list(other)), None))

    @property
    def line(self) -> str:
        """One row of a Markdown table."""
        order = "" if self.first_other is None else f"; another order from round {self.first_other} on"
        figures = f"{max(self.figures):.1e}" if self.figures else ""
        by_round = ", ".join(f"{number:.1e}" for number in self.distances)
        return f"| {self.title} | {by_round} | {figures} | {self.oddity}{order} |"


HEADER = "| what is compared | largest difference of weights, by round | of accuracy or PG | why |\n|---|---|---|---|"
