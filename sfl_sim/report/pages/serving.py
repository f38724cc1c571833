"""The page on served requests: how long answers take, where the time goes, and what accuracy costs under load."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.metrics.serving import Saturation, saturation
from sfl_sim.report.about import setup_in_words
from sfl_sim.report.display import duration, percent, plural
from sfl_sim.report.html_page import write_page
from sfl_sim.report.load import settings_by_variant
from sfl_sim.report.pages import serving_figures
from sfl_sim.report.pages.headline import told_by_seeds
from sfl_sim.report.serving_load import load_serving, rate
from sfl_sim.report.table import Cell, Table, columns_of
from sfl_sim.scenario.yaml_text import read_value

if TYPE_CHECKING:
    from collections.abc import Hashable
    from pathlib import Path

    from sfl_sim.report.panel import Panel
    from sfl_sim.report.serving_load import Served

CLEARLY = 0.95
"""Share of the leader's p95 below which another variant takes the lead; a smaller difference is chance."""
COLUMNS = columns_of(
    "trials",
    *("p50_s", "p95_s", "p99_s", "accuracy", "offload_probability", "throughput_per_s", "utilisation"),
    kind="serving",
)
"""The best is marked among variants at one rate."""


def write_serving(folder: Path, out: Path) -> Path:
    """Write the page on what `sfl-sim serve` left in `folder` to the file `out` and return its path.

    Raises:
        ScenarioError: the folder holds no served requests, or the page cannot be written.
    """
    served = load_serving(folder)
    trials = served.trials
    variants, seeds = plural(trials["variant"].nunique(), "variant"), plural(trials["seed"].nunique(), "seed")
    warm_up = ", ".join(percent(share, 0) for share in trials["warm_up"].unique())
    n_requests = plural(trials["requests"].sum(), "request")
    settings = settings_by_variant(read_value(served.scenario_text)) if served.scenario_text else {}
    return write_page(
        out, "serving", title=served.name, kind="serving", headlines=headline(served),
        about=f"{variants}, {seeds}, {n_requests}, of which the first {warm_up} do not count",
        setup=setup_in_words(list(settings.values()), served=True), warnings=warnings(served), panels=panels(served),
        results=results(served), runs=[served] if served.scenario_text else [],
    )  # fmt: skip


def panels(served: Served) -> list[Panel]:
    """List all sections that there are data for."""
    return [
        *serving_figures.survival_panels(served),
        *serving_figures.part_panels(served),
        *serving_figures.load_panels(served),
        *serving_figures.accuracy_panels(served),
        *serving_figures.rule_panels(served),
    ]


def results(served: Served) -> list[Table]:
    """The table at one rate, and below it, to be opened, that of all rates and that of groups of clients."""
    tables = [results_table(served, served.at_rate)]
    if len(served.at_rate) < len(served.trials):
        tables.append(results_table(served, served.trials, "All rates"))
    if served.groups["group"].nunique() > 1:
        tables.append(groups_table(served))
    return tables


def headline(served: Served) -> list[Markup]:
    """Give the headlines: what is quick and what is right, which variant leads when, and which falls behind."""
    return [*_best(served), *_leaders(served), *_saturations(served)]


def _best(served: Served) -> list[Markup]:
    """The quickest at the rate of the details, and the most accurate, if that is another one."""
    numbers = ["p95_s", "accuracy", "offload_probability"]
    middle = served.at_rate.groupby("series")[numbers].median().to_dict("index")
    names: dict[Hashable, Markup] = {series.label: series.html for series in served.series}

    def told(label: Hashable) -> str:
        own = middle[label]
        right = f", {percent(own['accuracy'])} of all correctly" if served.knows_accuracy else ""
        offloaded = percent(own["offload_probability"], 0)
        return f"answers 95 % of its requests within {duration(own['p95_s'])}{right}; the server answers {offloaded}."

    def sure(ranked: list[Hashable], column: str, sign: int) -> str:
        """Say what the seeds tell of the lead of the first."""
        by_seed = sign * served.at_rate.pivot_table(index="seed", columns="series", values=column)
        first, *others = map(str, ranked)
        return told_by_seeds(by_seed[first], by_seed[others[0]]) if others else ""

    by_p95 = sorted(middle, key=lambda label: middle[label]["p95_s"])
    quickest = by_p95[0]
    whom = names[quickest] + (" is the quickest: it" if len(middle) > 1 else "")
    sentences = [escape(f"At {served.shown_rate}, ") + whom + f" {told(quickest)}{sure(by_p95, 'p95_s', 1)}"]
    known = (label for label in middle if not math.isnan(middle[label]["accuracy"]))
    by_accuracy = sorted(known, key=lambda label: -middle[label]["accuracy"])
    if by_accuracy and (right := by_accuracy[0]) != quickest:
        which = "The most accurate is " + names[right]
        sentences.append(which + f": it {told(right)}{sure(by_accuracy, 'accuracy', -1)}")
    return sentences


def _leaders(served: Served) -> list[Markup]:
    """Say which variant has the lowest p95 from which rate on, among rates that at least one keeps up with."""
    trials = pd.concat([trials for _, trials in served.swept]) if served.is_sweep else served.trials[:0]
    trials = trials[trials.groupby("rate_per_s")["falls_behind"].transform("min") != 1]
    p95_s = trials.pivot_table(index="rate_per_s", columns="series", values="p95_s", aggfunc="median").dropna()
    if len(p95_s) < 2 or len(p95_s.columns) < 2:
        return []
    names: dict[str, Markup] = {series.label: series.html for series in served.series}
    terms: list[tuple[str, float, float]] = []
    for per_s, (_, own) in zip(p95_s.index.to_numpy(float), p95_s.iterrows(), strict=True):
        if not terms or own.min() < CLEARLY * own[terms[-1][0]]:
            terms.append((str(own.idxmin()), per_s, per_s))
        else:
            terms[-1] = (*terms[-1][:2], per_s)
    if len(terms) == 1:
        return [Markup("At no rate is another variant clearly quicker by p95 than {}.").format(names[terms[0][0]])]
    first, *between, last = terms
    spans = [names[label] + f" from {low:,.4g} to {rate(high)}" for label, low, high in between]
    begin, end = names[first[0]] + f" leads up to {rate(first[2])}", names[last[0]] + f" from {rate(last[1])} on"
    return ["The ranking by p95 changes with load: " + Markup(", ").join([begin, *spans, end]) + "."]


def _saturations(served: Served) -> list[Markup]:
    """Say between which rates which variants stop keeping up."""
    found: dict[Saturation | None, list[Markup]] = {}
    for series, trials in served.swept:
        at_most = trials[trials["rate_per_s"] == trials["rate_per_s"].max()]
        if (where := saturation(trials)) or at_most["falls_behind"].notna().any():
            found.setdefault(where, []).append(series.html)
    told = []
    for where, names in sorted(found.items(), key=lambda item: item[0].fell_behind_per_s if item[0] else math.inf):
        who = Markup("All variants") if 1 < len(names) == len(served.series) else Markup(", ").join(names)
        ending = "s" if len(names) == 1 else ""
        if where is None:
            told.append(who + f" handle{ending} all rates without saturation")
        elif where.kept_up_per_s:
            span = f"between {where.kept_up_per_s:,.4g} and {rate(where.fell_behind_per_s)}"
            told.append(who + f" become{ending} saturated {span}")
        else:
            told.append(who + f" {'is' if ending else 'are'} saturated even at {rate(where.fell_behind_per_s)}")
    return [Markup("; ").join(told) + "."] if told else []


def warnings(served: Served) -> list[str]:
    """Give the sentences that a reader must know before believing the rest."""
    texts = []
    if served.interrupted:
        texts.append("Serving was interrupted: what follows is what was served until then.")
    if served.trials["falls_behind"].isna().any():
        texts.append(
            "Where too few requests came, it is unknown whether the system is saturated: run longer or raise the rate."
        )
    if served.at_rate["falls_behind"].eq(1).any():
        texts.append(
            f"At {served.shown_rate} some variants are saturated: requests arrive faster than they are answered. "
            "Their latencies grow with the length of the run and say little else."
        )
    if not served.knows_accuracy:
        texts.append(
            "Timing-only. No model answered, so there is no accuracy; whether a device answered was drawn with a "
            "probability."
        )
    return texts


def results_table(served: Served, trials: pd.DataFrame, folded: str = "") -> Table:
    """Medians over seeds of `trials`, a row for each variant, the best marked; folded under a title if one is given."""
    columns = [column for column in COLUMNS if trials[column.key].notna().any()]
    one_rate = trials["rate_per_s"].nunique() == 1
    rows = []
    for series in served.series:
        own = trials[trials["series"] == series.label].sort_values("rate_per_s", kind="stable")
        for _, seeds in own.groupby("variant", sort=False):
            share = seeds["falls_behind"].mean()
            behind = " · too few requests to tell" if math.isnan(share) else " · saturated" if share >= 0.5 else ""
            heading = Cell(series.html, f"{seeds['method'].iloc[0]} · {plural(len(seeds), 'seed')}{behind}")
            told = [column.cell(seeds) if one_rate else column.cell(seeds).unranked for column in columns]
            rows.append([heading, Cell(f"{seeds['rate_per_s'].iloc[0]:,.4g}"), *told])
    titles = ["Variant", "Requests/s", *(column.title for column in columns)]
    return Table(titles, rows, folded, folded=bool(folded))


def groups_table(served: Served) -> Table:
    """The table of groups of clients, a row for each series and group at the rate of the details."""
    columns = [*columns_of("trials", "requests", kind="serving"), *COLUMNS[:5]]
    columns = [column for column in columns if served.groups[column.key].notna().any()]
    rows = []
    for series, trials in served.detailed:
        own = served.groups[served.groups["variant"] == trials["variant"].iloc[0]]
        for name, seeds in own.groupby("group", sort=False):
            rows.append([Cell(series.html, str(name)), *(column.cell(seeds).unranked for column in columns)])
    return Table(["Variant", *(column.title for column in columns)], rows, "Groups of clients", folded=True)
