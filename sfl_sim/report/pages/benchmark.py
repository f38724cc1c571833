"""The page of a benchmark: what each method reaches at which price, who beats whom by more than chance, and why."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup, escape
from rich.console import Group

from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.choices import interval, non_dominated, ranks
from sfl_sim.report import figures, style
from sfl_sim.report.display import data_size, data_unit, duration, percent, plural, points, prefixed, time_unit
from sfl_sim.report.html_page import write_page
from sfl_sim.report.lead import Compared, Sentence, lead, times
from sfl_sim.report.load import BENCHMARK, BENCHMARK_BEFORE, OWN_LINKS
from sfl_sim.report.panel import Cell, Column, Drawing, Panel, Table, by_variant
from sfl_sim.report.results import ToTarget, factor
from sfl_sim.report.terminal import in_terminal

WHAT = (
    ({"is_split": False}, "trains the whole model on the phone"),
    ({"is_split": True, "gets_gradients": False}, "needs no gradient from the server"),
    ({"keeps_graphs": False}, "runs no backward pass on the phone"),
    ({"is_split": True, "uploads_model": False}, "sends no model back"),
    ({"is_split": True, "sends_labels": False}, "keeps labels on the phone"),
)
"""What a method with these traits spares its users, or asks of them."""


LEARNED = ("score", "performance_gap", "backward_transfer", "perplexity")
"""Columns of what was learned."""
FROM_WORDS = ("control", "superseded", "option", "at_edge")
"""Columns of words, which are empty where there is nothing to say."""


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
        """The variants that are compared, in the scenario's order, unless they have diverged with every seed."""
        return list(
            dict.fromkeys(self.own.loc[(self.own["control"] == "") & (self.own["superseded"] == ""), "variant"])
        )

    @cached_property
    def beside(self) -> dict[str, str]:
        """What stands beside them and has no rank, by name, and why: controls, and rows that are superseded."""
        others = self.own[~self.own["variant"].isin(self.variants)]
        why = others["superseded"].where(others["superseded"] == "", "superseded: " + others["superseded"])
        return dict(zip(others["variant"], why.where(why != "", "control"), strict=True))

    @cached_property
    def alike(self) -> dict[str, list[str]]:
        """By the first of them, the variants that have learned the same: all figures of it are equal with each seed."""
        learned = self.own.set_index(["variant", "seed"])[list(LEARNED)].unstack("seed").loc[self.variants]
        groups: dict[bytes, list[str]] = {}
        for name, numbers in learned.iterrows():
            groups.setdefault(numbers.to_numpy(float).tobytes(), []).append(str(name))
        return {names[0]: names for names in groups.values()}

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

    def by_seed(self, column: str) -> pd.DataFrame:
        """A row for each seed, a column for each variant; a target that was missed is infinitely late."""
        wide = self.own.pivot(index="seed", columns="variant", values=column)[self.variants]
        has_run = self.own.pivot(index="seed", columns="variant", values="score")[self.variants].notna()
        return wide.mask(has_run & wide.isna(), math.inf) if column.endswith("_to_target") else wide

    def medians(self, column: str) -> pd.Series:
        """The median over seeds of each variant; that of a target is infinite if at least half of the seeds miss it."""
        return self.by_seed(column).median()


def load_compared(folder: Path, name: str = BENCHMARK) -> BenchmarkTable:
    """Read the table of a benchmark. Raises ScenarioError if there is none, or nothing in it, or it is an old one."""
    try:
        rows = pd.read_csv(folder / name, dtype=dict.fromkeys(FROM_WORDS, str))
    except (OSError, ValueError) as error:
        raise ScenarioError("is not the folder of a benchmark", key="folder", found=str(folder)) from error
    if rows.empty:
        raise ScenarioError("has nothing to report", key="folder", found=str(folder))
    if not set(FROM_WORDS) <= set(rows):
        problem = "has the table of an earlier version, whose methods were tuned otherwise: run the benchmark anew"
        raise ScenarioError(problem, key="folder", found=str(folder))
    return BenchmarkTable(folder, rows.fillna(dict.fromkeys(FROM_WORDS, "")))


def write_benchmark(folder: Path, out: Path) -> Path:
    """Write the page on the benchmark in `folder` to the file `out`, and return its path. Raises ScenarioError."""
    benchmark = load_compared(folder)
    variants, seeds = plural(len(benchmark.variants), "variant"), plural(benchmark.n_seeds, "seed")
    before = load_compared(folder, BENCHMARK_BEFORE) if (folder / BENCHMARK_BEFORE).exists() else None
    return write_page(
        out, "benchmark", title=str(benchmark.rows["track"].iloc[0]), kind="benchmark",
        headlines=headlines(benchmark), panels=panels(benchmark, before),
        about=f"{variants}, {seeds}, each with the settings that were best in pilots, on validation samples",
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
    for column in RANKED:
        by_seed = benchmark.by_seed(column)
        groups = benchmark.alike if column == "score" else {name: [name] for name in benchmark.variants}
        names = {first: Markup("<b>{}</b>").format(" = ".join(own)) for first, own in groups.items()}
        numbers = {name: by_seed[name] for name in names}
        sentences += lead(compared[column], numbers, names, reference=(benchmark.reference, "the reference"))
    return list({sentence.text: sentence for sentence in sentences}.values())


def ranked_by(benchmark: BenchmarkTable, column: str) -> pd.DataFrame:
    """The mean rank of each variant, with its interval; in what is learned, those that learn the same count once."""
    more = RANKED[column]
    by_seed = benchmark.by_seed(column)
    if column != "score":
        return ranks(by_seed, more)
    found = ranks(by_seed[list(benchmark.alike)], more)
    return pd.DataFrame({name: found.loc[first] for first, names in benchmark.alike.items() for name in names}).T


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
        Column("Rate of clients", "lr", "{:g}".format, None),
        Column("Rate of the server", "server_lr", "{:g}".format, None),
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
    listed = [(Cell(name, plural(len(own), "seed")), own)
              for name in benchmark.variants if len(own := benchmark.of(name, rows))]  # fmt: skip
    note = (
        "Medians over seeds, ± standard deviation; ranks are means over seeds with a 95 % interval, in which "
        "methods that have learned the same count once as to accuracy; the best of each column is shaded. Half the "
        f"time and half the bytes are those that {benchmark.reference} spends in all its rounds; the best round within "
        "them counts. Controls, and rows that are superseded, have no rank."
    )
    made = by_variant(shown, listed, note=note)
    others = [[Cell(name, why), *(column.cell(benchmark.of(name)).unranked if column.key == "score" else Cell("–")
                                  for column in shown)] for name, why in benchmark.beside.items()]  # fmt: skip
    return replace(made, rows=[*made.rows, *others])


def panels(benchmark: BenchmarkTable, before: BenchmarkTable | None = None) -> list[Panel]:
    """List the sections of the page; `before` is the version of the table before this one."""
    front = (
        "Each mark is a variant, at the other end of its name's line. Blue ones are on the Pareto front: no other is "
        "better in both."
    )
    made = [
        Panel("All methods", about_target(benchmark), tables=[table(benchmark, columns(benchmark))]),
        Panel("What it costs", front, fronts(benchmark), columns=2),
    ]
    others = [links for links in benchmark.rows["links"].unique() if links != OWN_LINKS]
    if others:
        made.append(Panel("On other links", LINKS, tables=[on_links(benchmark, others)]))
    if before and (rows := moved(before, benchmark)):
        titles = ["Variant", "Accuracy before", "Now", "Rank before", "Now", "Why"]
        made.append(Panel("What moved", MOVED, tables=[Table(titles, rows, words=titles[-1:])]))
    return [*made, Panel("Cards", CARDS.format(benchmark.reference), tables=cards(benchmark), folded=True)]


def about_target(benchmark: BenchmarkTable) -> str:
    """Say what the target is, between what controls reach."""
    told = [f"{name} {percent(float(benchmark.of(name)['score'].median()))}"
            for name, why in benchmark.beside.items() if why == "control"]  # fmt: skip
    target = float(benchmark.own["target"].median())
    if math.isnan(target):
        return (
            "There is no target: a centrally trained network does no better than clients at rest or weights at start."
        )
    between = "lies between the best rounds without the clients' training and those of one network that is trained " \
              f"centrally. In the last rounds: {', '.join(told)}."  # fmt: skip
    return f"The target, {percent(target)} in the median, {between if told else 'has no controls beside it.'}"


LINKS = (
    "The same training, timed again. ~: what is learned depends on times or order, so that there it might learn "
    "otherwise; –: nothing is known."
)


NAME_PX = 13
"""Height of a name beside a figure; a letter is less than half as wide."""


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
    return [(heading, partial(against, benchmark.medians("score"), *cost)) for heading, cost in costs.items()]


def against(scores: pd.Series, cost: pd.Series, title: str) -> go.Figure:
    """Accuracy against a cost, on a logarithmic axis if costs differ by much.

    Names stand in the margin, in the order of accuracy, where none hides another; a thin line leads to each mark.
    """
    y = 100 * scores.dropna().sort_values()
    x = cost[y.index]
    axis = figures.wide_axis(x.min(), x.max())
    if axis["type"] == "log":
        edge = x.max() * 1.2
        axis["range"] = np.log10([x.min() / 1.2, edge]).tolist()
    else:
        beside = 0.05 * (np.ptp(x) or x.max())
        edge = x.max() + beside
        axis["range"] = [x.min() - beside, edge]
    names, heights = [str(escape(name)) for name in y.index], np.linspace(y.min(), y.max(), len(y))
    figure = figures.canvas(max(460, 90 + NAME_PX * len(y)))
    figure.add_scatter(
        x=[at for each in x for at in (each, edge, None)], mode="lines", hoverinfo="skip", showlegend=False,
        y=[at for each in zip(y, heights, strict=True) for at in (*each, None)],
        line={"color": style.MUTED, "width": 1}, opacity=0.35,
    )  # fmt: skip
    is_best = non_dominated(-y.to_numpy(), x.to_numpy())
    figure.add_scatter(
        x=x.to_numpy(), y=y.to_numpy(), mode="markers", showlegend=False, text=names,
        marker={"color": np.where(is_best, style.VARIANT_COLOURS[0], style.MUTED), "size": np.where(is_best, 9, 7)},
        hovertemplate="%{text}<br>%{y:.1f} %, %{x:.3~g}<extra></extra>",
    )  # fmt: skip
    for name, height, best in zip(names, heights, is_best, strict=True):
        figure.add_annotation(
            text=f"<b>{name}</b>" if best else name, font={"size": 10, "color": style.INK if best else style.MUTED},
            x=1, xref="paper", xanchor="left", y=height, showarrow=False,
        )  # fmt: skip
    figure.update_layout(margin_r=NAME_PX / 2 * max(map(len, names)))
    return figure.update_xaxes(axis, title=title).update_yaxes(title="accuracy (%)")


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


CARDS = (
    "Accuracy: how many points more than {}, seed by seed, with a 95 % interval. All else: medians, and how many "
    "times as much, where no seed of either misses the target."
)


def cards(benchmark: BenchmarkTable) -> list[Table]:
    """Make a card of each method: what it is like, what it reaches and needs beside the reference, and its tuning."""
    found, scores, ranked = [], benchmark.by_seed("score"), ranked_by(benchmark, "score")
    needs = {
        "Client memory": ("client_memory_bytes", data_size),
        "Time to target": ("seconds_to_target", duration),
        "Bytes to target": ("bytes_to_target", data_size),
    }
    for name in benchmark.variants:
        own, more = benchmark.of(name), scores[name] - scores[benchmark.reference]
        place, low, high = (float(ranked[key][name]) for key in ("rank", "low", "high"))
        spared = [words for traits, words in WHAT if all(own[key].iloc[0] == value for key, value in traits.items())]
        ends = interval(more.dropna()).tolist()
        said = f"{points(more.mean())} points more than {benchmark.reference}{_within(ends, points)}"
        rank = f"rank {place:.1f}{_within([low, high], '{:.1f}'.format)}"
        what = ", ".join(spared) or "–"
        rows = [("What it is like", what), ("Accuracy", f"{said}; {rank} of {len(benchmark.alike)}")]
        for title, (key, text) in needs.items():
            ours, theirs = (benchmark.by_seed(key)[each] for each in (name, benchmark.reference))
            middle, ratio = float(ours.median()), times(ours, theirs)
            told = text(middle) if math.isfinite(middle) else "not reached"
            rows.append((title, told if math.isnan(ratio) else f"{told}, {factor(ratio)}"))
        rows.append(("Tuned to", tuning(own)))
        found.append(Table(["", name], [[Cell(title), Cell(text)] for title, text in rows], words=[name]))
    return found


def _within(ends: Sequence[float], text: Callable[[float], str]) -> str:
    """An interval behind a number; empty for fewer than two seeds."""
    low, high = ends
    return f" [{text(low)}, {text(high)}]" if math.isfinite(low) else ""


def tuning(own: pd.DataFrame) -> str:
    """The settings that pilots have chosen for a variant, by its rows."""
    row = own.iloc[0]
    at_server = f", {row['server_lr']:g} at the server" if row["server_lr"] > 0 else ""
    edge = f" (at the edge of the search: {row['at_edge']})" if row["at_edge"] else ""
    return ", ".join(filter(None, [f"{row['optimizer']}, rate {row['lr']:g}{at_server}", row["option"]])) + edge


MOVED = (
    "Variants whose accuracy or rank is another one than in the version of the table before this one, which lies "
    "beside it as " + BENCHMARK_BEFORE + "."
)


def moved(before: BenchmarkTable, now: BenchmarkTable) -> list[list[Cell]]:
    """Rows of the variants whose accuracy or rank has changed between two versions of a table, and why."""
    both, rows = [before, now], []
    medians, places = [each.medians("score") for each in both], [ranked_by(each, "score")["rank"] for each in both]
    for name in dict.fromkeys([*before.variants, *now.variants]):
        scores, at = [each.get(name, math.nan) for each in medians], [each.get(name, math.nan) for each in places]
        cells = [*("–" if math.isnan(score) else percent(score) for score in scores),
                 *("–" if math.isnan(place) else f"{place:.1f}" for place in at)]  # fmt: skip
        if cells[0] != cells[1] or cells[2] != cells[3]:
            rows.append([Cell(name), *map(Cell, cells), Cell(_why_moved(name, before, now))])
    return rows


def _why_moved(name: str, before: BenchmarkTable, now: BenchmarkTable) -> str:
    if name not in now.variants:
        return now.beside.get(name, "no longer in the table")
    if name not in before.variants:
        return f"before {before.beside[name]}" if name in before.beside else "new"
    was, own = before.of(name), now.of(name)
    if tuning(was) != tuning(own):
        return f"tuned to {tuning(own)}; before to {tuning(was)}"
    if set(was["seed"]) != set(own["seed"]):
        return "other seeds"
    return "others came, went or moved" if was["score"].tolist() == own["score"].tolist() else "trained anew"
