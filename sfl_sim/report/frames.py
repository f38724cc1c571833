"""Several runs side by side as one set of frames, with one label and one colour for each variant."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import pandas as pd
from markupsafe import escape

from sfl_sim.metrics.rounds import typical_round
from sfl_sim.metrics.scores import SCORES, score_of
from sfl_sim.report import style
from sfl_sim.report.load import IN_MEMORY, Run, Tables
from sfl_sim.scenario.own_code import object_name

T = TypeVar("T")


@dataclass(frozen=True)
class ShownVariant(style.Named):
    """Variant of a run, with the name and colour that it has all over the page.

    Attributes:
        label: unique on the page and escaped, as are all names in `Frames`.
        seed: the first seed, whose operations are drawn.
        order: the server's order policy; None if the scenario does not tell.
    """

    method: str
    order: str | None
    seed: int
    run: Run
    name: str

    def first_seed(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows of a table of `Frames` that belong to this variant's first seed."""
        return table[(table["variant"] == self.label) & (table["seed"] == self.seed)]

    def rows(self, table: str, columns: Sequence[str] | None = None, **where: object) -> pd.DataFrame:
        """Read the rows of this variant's first seed, with the values `where`, from a table of the run's folder."""
        return self.run.rows(table, columns, variant=self.name, seed=self.seed, **where)


@dataclass(frozen=True)
class Frames(Tables):
    """Data that the figures draw: `variant` holds labels, and seeds of one variant share its label.

    `rounds` has the column `bytes_so_far`: what has crossed links since the start of the run, up and down.
    """

    runs: list[Run]
    variants: list[ShownVariant]

    @property
    def title(self) -> str:
        """The names of the scenarios."""
        return " · ".join(dict.fromkeys(run.name for run in self.runs))

    @cached_property
    def clock(self) -> str:
        """Whose time it is: simulated time, or measured time of live runs."""
        return " or ".join(dict.fromkeys("measured" if run.is_live else "simulated" for run in self.runs)) + " time"

    @cached_property
    def timing_only(self) -> bool:
        """True if nothing was trained, so that no figure of accuracy can be drawn."""
        return bool(self.rounds[self.score].isna().all())

    @cached_property
    def score(self) -> str:
        """The column of accuracy, or of the first score of another goal."""
        return score_of(self.rounds)

    @property
    def group(self) -> str:
        """What samples are grouped by where clients differ: their label, or a group of numbers, sets or masks."""
        return "label" if self.score == SCORES[0] and self.summary["goal"].isna().all() else "group"

    @cached_property
    def has_perplexity(self) -> bool:
        """True if a variant has predicted the next token at every position."""
        return bool(self.summary["perplexity"].notna().any())

    @cached_property
    def has_client_accuracy(self) -> bool:
        """True if clients were tested on test sets of their own."""
        return bool(self.rounds["client_accuracy"].notna().any())

    @cached_property
    def typical_round(self) -> int:
        """The round that is drawn in detail."""
        return typical_round(self.rounds)

    @cached_property
    def n_seeds(self) -> int:
        """The number of seeds of the variant that has most."""
        return int(self.summary.groupby("variant")["seed"].nunique().max())

    @cached_property
    def n_variants(self) -> int:
        """The number of all variants, those included that are not drawn."""
        return sum(run.rounds["variant"].nunique() for run in self.runs)

    @cached_property
    def drawn(self) -> Frames:
        """What figures show: the first `style.MAX_LOOKS` variants, which look different, and those they refer to."""
        if len(self.variants) <= style.MAX_LOOKS:
            return self
        first = {variant.label for variant in self.variants[: style.MAX_LOOKS]}
        return self._of(first | set(self.summary.loc[self.summary["variant"].isin(first), "reference"]))

    @cached_property
    def holding(self) -> Frames:
        """Those variants whose results of training hold: all but those that a repriced run would have to train."""
        doubtful = {variant.label for variant in self.variants if variant.name in variant.run.doubtful}
        return self._of({variant.label for variant in self.variants} - doubtful) if doubtful else self

    def _of(self, labels: Collection[str]) -> Frames:
        tables = {name: table[table["variant"].isin(labels)] for name in IN_MEMORY if len(table := getattr(self, name))}
        return replace(self, variants=[each for each in self.variants if each.label in labels], **tables)


def label_ranks(labels: pd.DataFrame) -> pd.Series:
    """The row on which each label is drawn, from 0: its place in its seed's cyclic order, or else its number."""
    return labels["position"].where(labels["position"] >= 0, labels["label"])


def label_names(frames: Frames, variant: ShownVariant) -> pd.Series:
    """The labels' names by their numbers, in the cyclic order of the first seed; none if nothing was trained."""
    labels = variant.first_seed(frames.labels).drop_duplicates("label")
    return labels.assign(rank=label_ranks(labels)).sort_values("rank").set_index("label")["label_name"]


def client_names(frames: Frames, variant: ShownVariant, clients: pd.DataFrame) -> dict[Any, str]:
    """The names of `clients` (rows by number) of the first seed by their numbers: label 2, client 27; cat, client 3."""
    names = label_names(frames, variant).to_dict()
    labels = {client: str(names.get(label, label)) for client, label in clients["dominant_label"].items()}
    return {
        client: f"{f'{frames.group} {label}' if label.isdigit() else label}, client {client}"
        for client, label in labels.items()
    }


def distinct(tables: Iterable[tuple[T, pd.DataFrame]]) -> list[tuple[list[T], pd.DataFrame]]:
    """The tables that differ, each with all (variants, or names) that have it."""
    found: list[tuple[list[T], pd.DataFrame]] = []
    for one, table in tables:
        alike = next((others for others, known in found if known.equals(table)), None)
        if alike is None:
            found.append(([one], table))
        else:
            alike.append(one)
    return found


def merge(runs: Sequence[Run]) -> Frames:
    """Put the variants of `runs` side by side. Names are escaped here, once, for pages and Plotly alike."""
    variants: list[ShownVariant] = []
    tables: dict[str, list[pd.DataFrame]] = {table: [] for table in IN_MEMORY}
    for run, title in zip(runs, titles(runs), strict=True):
        names = list(run.rounds["variant"].unique())
        shown = [title] if title and len(names) == 1 else [f"{title}: {name}" if title else name for name in names]
        labels = dict(zip(names, map(escape, shown), strict=True))
        methods = run.summary.drop_duplicates("variant").set_index("variant")["method"]
        seeds = run.rounds.groupby("variant")["seed"].min()
        variants += [
            ShownVariant(
                label=labels[name], method=str(methods[name]), order=run.settings[name].get("server.order"),
                seed=int(seeds[name]), **style.look(index), run=run, name=name,
            )
            for index, name in enumerate(names, start=len(variants))
        ]  # fmt: skip
        for table, frames in tables.items():
            frame: pd.DataFrame = getattr(run, table)
            frame = frame[frame["variant"].isin(names)]
            frames.append(frame.assign(variant=frame["variant"].map(labels)))
        tables["summary"][-1]["reference"] = [labels.get(name, "") for name in tables["summary"][-1]["reference"]]
    # Empty tables (labels of timing-only runs) have no types, which would spoil those of the others.
    merged = {
        name: pd.concat([rows for rows in of if len(rows)] or of, ignore_index=True) for name, of in tables.items()
    }
    rounds = merged["rounds"]
    moved = rounds["bytes_up"] + rounds["bytes_down"]
    rounds["bytes_so_far"] = moved.groupby([rounds["variant"], rounds["seed"]]).cumsum()
    for table, column in (("labels", "label_name"), ("layers", "name"), ("layers", "model")):
        merged[table][column] = merged[table][column].astype(str).map(object_name).map(escape)
    return Frames(**merged, runs=list(runs), variants=variants)


def titles(runs: Sequence[Run]) -> list[str]:
    """Give the words that tell runs apart: none if there is one, else the scenario's name, else the folder."""
    names = [run.name for run in runs]
    if len(names) == 1:
        return [""]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]
