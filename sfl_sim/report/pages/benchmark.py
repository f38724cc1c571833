"""The page of a benchmark: what each method reaches at which price, who beats whom by more than chance, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import pandas as pd
from markupsafe import escape

from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.choices import interval, non_dominated, ranks
from sfl_sim.report import figures, style
from sfl_sim.report.display import data_size, data_unit, duration, percent, plural, points, prefixed, time_unit
from sfl_sim.report.html_page import write_page
from sfl_sim.report.lead import Compared, lead, times
from sfl_sim.report.load import BENCHMARK, OWN_LINKS
from sfl_sim.report.panel import Cell, Column, Drawing, Panel, Table, by_variant
from sfl_sim.report.results import ToTarget, factor
from sfl_sim.report.terminal import in_terminal

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    import plotly.graph_objects as go
    from rich.console import Group

    from sfl_sim.report.lead import Sentence


WHAT = (
    ({"is_split": False}, "trains the whole model on the phone"),
    ({"is_split": True, "gets_gradients": False}, "needs no gradient from the server"),
    ({"keeps_graphs": False}, "runs no backward pass on the phone"),
    ({"is_split": True, "uploads_model": False}, "sends no model back"),
    ({"is_split": True, "sends_labels": False}, "keeps labels on the phone"),
)
"""What a method with these traits spares its users, or asks of them."""


@dataclass(frozen=True)
class BenchmarkTable:
    """The table of a benchmark.

    Attributes:
        folder: where it is.
        rows: a row for each variant, seed and links.
    """

    folder: Path
    rows: pd.DataFrame

    @cached_property
    def own(self) -> pd.DataFrame:
        """The rows of the scenario's own links."""
        return self.rows[self.rows["links"] == OWN_LINKS]

    @cached_property
    def variants(self) -> list[str]:
        """The variants that have not diverged with every seed, in the scenario's order."""
        return list(dict.fromkeys(self.own["variant"]))

    @property
    def reference(self) -> str:
        """The first variant, whose spending is the budget of the others."""
        return self.variants[0]

    @cached_property
    def n_seeds(self) -> int:
        """The number of seeds."""
        return int(self.own["seed"].nunique())

    def of(self, variant: str, rows: pd.DataFrame | None = None) -> pd.DataFrame:
        """The rows of a variant."""
        rows = self.own if rows is None else rows
        return rows[rows["variant"] == variant]

    def by_seed(self, column: str, late: bool = False) -> pd.DataFrame:
        """A row for each seed, a column for each variant; a target that was missed is infinitely late."""
        wide = self.own.pivot(index="seed", columns="variant", values=column)[self.variants]
        has_run = self.own.pivot(index="seed", columns="variant", values="score")[self.variants].notna()
        return wide.mask(has_run & wide.isna(), math.inf) if late else wide

    def needed(self, column: str) -> pd.DataFrame:
        """What each variant needs, by seed: a target that was missed is infinitely late."""
        return self.by_seed(column, late=column.endswith("_to_target"))

    def medians(self, column: str) -> pd.Series:
        """The median over seeds of each variant; that of a target is infinite if at least half of the seeds miss it."""
        return self.needed(column).median()


def load_compared(folder: Path) -> BenchmarkTable:
    """Read the table of a benchmark. Raises ScenarioError if there is none, or nothing in it."""
    try:
        rows = pd.read_csv(folder / BENCHMARK)
    except (OSError, ValueError) as error:
        raise ScenarioError("is not the folder of a benchmark", key="folder", found=str(folder)) from error
    if rows.empty:
        raise ScenarioError("has nothing to report", key="folder", found=str(folder))
    return BenchmarkTable(folder, rows)


def write_benchmark(folder: Path, out: Path) -> Path:
    """Write the page on the benchmark in `folder` to the file `out`, and return its path. Raises ScenarioError."""
    benchmark = load_compared(folder)
    variants, seeds = plural(len(benchmark.variants), "variant"), plural(benchmark.n_seeds, "seed")
    chosen = f", by the {benchmark.rows['lr_chosen_on'].iloc[0]}" if "lr_chosen_on" in benchmark.rows else ""
    return write_page(
        out, "benchmark", title=str(benchmark.rows["track"].iloc[0]), kind="benchmark",
        headlines=headlines(benchmark), panels=panels(benchmark),
        about=f"{variants}, {seeds}, each with the learning rate that was best in pilots with other seeds{chosen}",
    )  # fmt: skip


def benchmark_in_terminal(folder: Path) -> Group:
    """Say what the page says, and tabulate what each variant of the benchmark in `folder` has reached and spent."""
    benchmark = load_compared(folder)
    wanted = {"score", "seconds_to_target", "bytes_to_target", "client_memory_bytes"}
    return in_terminal(
        headlines(benchmark), table(benchmark, [column for column in columns(benchmark) if column.key in wanted])
    )


RANKED = {"score": True, "seconds_to_target": False, "bytes_to_target": False}
"""The columns by which variants are ranked, and whether more is better."""


def headlines(benchmark: BenchmarkTable) -> list[Sentence]:
    """Say who is most accurate, who is first at the target, and who gets there with the fewest bytes."""
    target = f"the target ({percent(float(benchmark.own['target'].median()))} in the median)"
    compared = {
        "score": Compared("accuracy", "best", percent, more_is_better=True),
        "seconds_to_target": Compared(f"time to {target}", "shortest", duration, target="the target"),
        "bytes_to_target": Compared("bytes to the target", "fewest", data_size, target="the target"),
    }
    sentences = []
    for column, more in RANKED.items():
        by_seed = benchmark.by_seed(column, late=not more)
        numbers = {name: by_seed[name] for name in benchmark.variants}
        sentences += lead(compared[column], numbers, reference=(benchmark.reference, "the reference"))
    return sentences


def ranked_by(benchmark: BenchmarkTable, column: str) -> pd.DataFrame:
    """The mean rank of each variant, with its interval."""
    more = RANKED[column]
    return ranks(benchmark.by_seed(column, late=not more), more)


def _interval(column: Column, seeds: pd.DataFrame) -> str:
    """The 95 % interval of a mean rank over seeds."""
    low, high = (float(seeds[f"{column.key}_{end}"].iloc[0]) for end in ("low", "high"))
    return f"{low:.1f} to {high:.1f}" if math.isfinite(low) else ""


def columns(benchmark: BenchmarkTable) -> list[Column]:
    """List the columns of the table that say something."""
    every = [
        Column("Accuracy", "score", percent, more_is_better=True),
        Column("Rank", "rank_score", "{:.1f}".format, below=_interval),
        ToTarget("Time to target", "seconds_to_target", duration),
        Column("Rank", "rank_seconds_to_target", "{:.1f}".format, below=_interval),
        ToTarget("Bytes to target", "bytes_to_target", data_size),
        Column("Rank", "rank_bytes_to_target", "{:.1f}".format, below=_interval),
        ToTarget("Energy to target", "joule_to_target", partial(prefixed, unit="J")),
        ToTarget("Rounds to target", "rounds_to_target", "{:.0f}".format),
        Column("Client memory", "client_memory_bytes", data_size),
        Column("In half the time", "score_in_half_time", percent, more_is_better=True),
        Column("With half the bytes", "score_in_half_bytes", percent, more_is_better=True),
        Column("Perplexity", "perplexity", "{:.2f}".format),
        Column("PG (points)", "performance_gap", points),
        Column("BW (points)", "backward_transfer", points),
        Column("Leakage (SSIM)", "ssim", "{:.2f}".format),
        Column("All rounds", "simulated_s", duration),
        Column("Sent up", "bytes_up", data_size),
        Column("Sent down", "bytes_down", data_size),
        Column("Server memory", "server_model_bytes", data_size),
        Column("Learning rate", "lr", "{:g}".format, None),
    ]
    known = with_ranks(benchmark)
    return [column for column in every if known[column.key].notna().any()]


def with_ranks(benchmark: BenchmarkTable) -> pd.DataFrame:
    """The rows of the scenario's own links, with the mean ranks of their variants."""
    rows = benchmark.own
    for column in RANKED:
        ranked = ranked_by(benchmark, column).rename(
            columns={"rank": f"rank_{column}", "low": f"rank_{column}_low", "high": f"rank_{column}_high"}
        )
        rows = rows.merge(ranked, how="left", left_on="variant", right_index=True)
    return rows


def table(benchmark: BenchmarkTable, shown: Sequence[Column]) -> Table:
    """Tabulate what each variant has reached and spent."""
    rows = with_ranks(benchmark)
    listed = [
        (Cell(name, plural(len(own), "seed")), own)
        for name in benchmark.variants
        if len(own := benchmark.of(name, rows))
    ]
    note = (
        "Medians over seeds, ± standard deviation; ranks are means over seeds with a 95 % interval; the best of each "
        "column is shaded. A title sorts. Half the time and half the bytes are those that "
        f"{benchmark.reference} spends in all its rounds; the best round within them counts."
    )
    return by_variant(shown, listed, note=note)


def panels(benchmark: BenchmarkTable) -> list[Panel]:
    """List the sections of the page."""
    target = percent(float(benchmark.own["target"].median()))
    about = (
        f"The target is a share of the best accuracy of {benchmark.reference}, seed by seed: {target} in the median."
    )
    front = (
        "Each point is a variant. Blue ones are on the Pareto front: no other is better in both. These have names, and "
        "so have methods of your own."
    )
    made = [
        Panel("All methods", about, tables=[table(benchmark, columns(benchmark))]),
        Panel("What it costs", front, fronts(benchmark), columns=2),
    ]
    others = [links for links in benchmark.rows["links"].unique() if links != OWN_LINKS]
    if others:
        made.append(Panel("On other links", LINKS, tables=[on_links(benchmark, others)]))
    caption = (
        f"Accuracy: how many points more than {benchmark.reference}, seed by seed, with a 95 % interval. All else: how "
        "many times as much, by medians; –: a seed of either misses the target."
    )
    return [*made, Panel(f"Beside {benchmark.reference}", caption, tables=[beside_reference(benchmark)])]


LINKS = (
    "The same training, timed again. ~: what is learned depends on times or order, so that there it might learn "
    "otherwise; –: nothing is known."
)


def fronts(benchmark: BenchmarkTable) -> list[Drawing]:
    """List the figures of accuracy against what it costs."""
    time_s, moved = benchmark.medians("simulated_s"), benchmark.medians("bytes_up") + benchmark.medians("bytes_down")
    memory = benchmark.medians("client_memory_bytes")
    unit, unit_s = time_unit(time_s.max())
    size, size_bytes = data_unit(moved.max())
    held, held_bytes = data_unit(memory.max())
    costs = {
        "Accuracy and time of all rounds": (time_s / unit_s, f"simulated time ({unit})"),
        "Accuracy and bytes": (moved / size_bytes, f"up and down ({size})"),
        "Accuracy and memory of a client": (memory / held_bytes, f"client memory ({held})"),
    }
    # A column that older tables do not have.
    own = {name for name in benchmark.variants if benchmark.of(name).get("is_own", pd.Series(dtype=bool)).any()}
    return [(heading, partial(against, benchmark.medians("score"), *cost, own)) for heading, cost in costs.items()]


def against(scores: pd.Series, cost: pd.Series, title: str, named: Collection[str] = ()) -> go.Figure:
    """Accuracy against a cost, on a logarithmic axis if costs differ by much; `named` have names, as the front."""
    figure, best = figures.canvas(380), non_dominated(-scores.to_numpy(), cost.to_numpy())
    for is_best, colour in ((False, style.MUTED), (True, style.VARIANT_COLOURS[0])):
        own = scores[best == is_best].loc[lambda names: cost[names.index].sort_values().index]
        is_left = cost[own.index] ** 2 < cost.min() * cost.max()  # names stay inside, off their neighbours
        sides = [("top right", "bottom right") if left else ("top left", "bottom left") for left in is_left]
        places = [side[(len(own) - 1 - n) % 2] for n, side in enumerate(sides)]
        figure.add_scatter(
            x=cost[own.index].to_numpy(), y=100 * own.to_numpy(), mode="markers+text", showlegend=False,
            text=[str(escape(name)) if is_best or name in named else "" for name in own.index], textposition=places,
            hovertext=[str(escape(name)) for name in own.index],
            textfont={"size": 11, "color": style.INK}, marker={"color": colour, "size": 9 if is_best else 7},
            hovertemplate="%{hovertext}<br>%{y:.1f} %, %{x:.3~g}<extra></extra>",
        )  # fmt: skip
    figure.update_xaxes(figures.wide_axis(cost.min(), cost.max()), title=title)
    return figure.update_yaxes(title="accuracy (%)")


def on_links(benchmark: BenchmarkTable, others: Sequence[str]) -> Table:
    """Tabulate the time to the target on the scenario's links and on others."""
    column = ToTarget("", "seconds_to_target", duration)
    cells = []
    for name in benchmark.variants:
        row = [Cell(name)]
        for links in (OWN_LINKS, *others):
            own = benchmark.of(name, benchmark.rows[benchmark.rows["links"] == links])
            if own.empty:
                row.append(Cell("–"))
            else:
                cell = column.cell(own)
                row.append(cell if own["holds"].all() else cell._replace(text=f"~ {cell.text}"))
        cells.append(row)
    return Table(["Variant", "The scenario's links", *others], cells)


def beside_reference(benchmark: BenchmarkTable) -> Table:
    """Tabulate what each method has more than the reference, how many times as much it needs, and what it spares."""
    rows, scores = [], benchmark.by_seed("score")
    needed = [benchmark.needed(key) for key in ("client_memory_bytes", "seconds_to_target", "bytes_to_target")]
    for name in benchmark.variants:
        own, more = benchmark.of(name), scores[name] - scores[benchmark.reference]
        low, high = interval(more.dropna())
        ratios = [times(numbers[name], numbers[benchmark.reference]) for numbers in needed]
        spared = [words for traits, words in WHAT if all(own[key].iloc[0] == value for key, value in traits.items())]
        rows.append(
            [
                Cell(name), Cell(points(more.mean()), f"{points(low)} to {points(high)}" if math.isfinite(low) else ""),
                *(Cell("–" if math.isnan(ratio) else factor(ratio)) for ratio in ratios), Cell(", ".join(spared)),
            ]
        )  # fmt: skip
    titles = ["Variant", "Accuracy (points)", "Client memory", "Time to target", "Bytes to target", "What it is like"]
    return Table(titles, rows, words=titles[-1:])
