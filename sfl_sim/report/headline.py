"""Sentences at the top of the page of a run: what was found, and what a reader must know before believing it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape

from sfl_sim.report.display import duration, percent, plural, points
from sfl_sim.report.frontier import choice
from sfl_sim.report.results import medians
from sfl_sim.report.targets import ROUNDS, TIME, Aim, aims, factor
from sfl_sim.store import changed_files

if TYPE_CHECKING:
    from sfl_sim.report.frames import Frames, Variant
    from sfl_sim.report.load import Run
    from sfl_sim.report.results import Numbers

ARRIVAL_ORDER = "fcfs"
ORDER_SETTINGS = ("max_wait_s", "burst")
"""Keys beside `server.order` that say more of an order, and that arrival order has not."""
MAX_COMPARISONS = 3

MAX_ALIKE = 5
ADAPTIVE = ("window_ratio", "clp", "printed")
"""Rules of KoReA-SFL by which the proportion of replay follows the gradient norm."""

Found = tuple["Variant", "Numbers"]


def headline(frames: Frames) -> list[Markup]:
    """Give the headlines, the most important first, each of at most three sentences."""
    middle = medians(frames).to_dict("index")
    found: list[Found] = [(variant, middle[variant.label]) for variant in frames.variants]
    return _leaders(frames, found) + _order_costs(frames, found) + choice(frames)


def _leaders(frames: Frames, found: list[Found]) -> list[Markup]:
    if frames.timing_only:
        return [_fastest(found)]
    goals = [aim for aim in aims(frames) if aim.target is not None]
    sentences = [_first_to_target(aim) for aim in goals[:MAX_COMPARISONS]]
    if len(goals) > MAX_COMPARISONS:
        sentences.append(escape(f"{plural(len(goals) - MAX_COMPARISONS, 'more target')} below."))
    return sentences if any(aim.ranking for aim in goals) else [*sentences, _most_accurate(found)]


def _fastest(found: list[Found]) -> Markup:
    (first, least_s), *others = sorted(((v, _round_s(numbers)) for v, numbers in found), key=lambda pair: pair[1])
    sentence = first.html + f" takes {duration(least_s)} of simulated time per round"
    if not others:
        return sentence + "."
    last, most_s = others[-1]
    if duration(most_s) == duration(least_s):
        return escape(f"Every variant takes {duration(least_s)} of simulated time per round.")
    return sentence + ", the least of all; " + last.html + f" takes the most, {duration(most_s)}."


def _first_to_target(aim: Aim) -> Markup:
    ranking = aim.ranking
    if not ranking:
        return escape(f"The target of {aim.name} is not reached.")
    first, *others = ranking
    sentence = first.html + (
        f" reaches {aim.name} {'first, ' if len(aim.variants) > 1 else ''}after "
        f"{duration(TIME.median(aim.seeds(first)))} of simulated time and "
        f"{plural(ROUNDS.median(aim.seeds(first)), 'round')}"
    )
    sentence += _times_as_fast(aim, first)
    if not others:
        return sentence + ("; no other variant reaches it." if len(aim.variants) > 1 else ".")
    second = others[0]
    needed = duration(TIME.median(aim.seeds(second)))
    if second is aim.baseline:  # which the sentence has just named
        return sentence + f"; that one needs {needed}."
    return sentence + "; the next is " + second.html + f" after {needed}."


def _times_as_fast(aim: Aim, variant: Variant) -> Markup:
    """Say how it compares with the baseline, if that is another one and did run."""
    baseline = aim.baseline
    low, high = aim.speedup(variant, TIME)
    if baseline is None or baseline is variant or not low > 0:
        return Markup("")
    at_least = "" if low == high else "more than "
    of_whom = f", of whose best accuracy the target is {percent(aim.share, 0)}" if aim.reference else ", the slowest"
    return escape(f", {at_least}{factor(low)} as fast as ") + baseline.html + of_whom


def _most_accurate(found: list[Found]) -> Markup:
    measured = [(variant, numbers) for variant, numbers in found if not math.isnan(numbers["accuracy"])]
    (first, best), *others = sorted(measured, key=lambda pair: -pair[1]["accuracy"])
    sentence = first.html + (
        f" ends with {'the best accuracy, ' if others else 'an accuracy of '}{percent(best['accuracy'])}, "
        f"after {plural(best['rounds'], 'round')} and {duration(best['simulated_s'])} of simulated time"
    )
    if not others:
        return sentence + "."
    second, its = others[0]
    return sentence + "; the next is " + second.html + f" with {percent(its['accuracy'])}."


@dataclass(frozen=True)
class OrderCost:
    """A variant beside the one that differs from it in serving in arrival order.

    `change` is how much more simulated time the order takes, as a share: the median over seeds, each of which has
    clients of its own, alike in both variants.
    """

    variant: Variant
    ours: Numbers
    arrival: Numbers
    change: float


def _order_costs(frames: Frames, found: list[Found]) -> list[Markup]:
    """One sentence for each pair of variants that differ in their order alone, one of them in arrival order.

    Of more than `MAX_COMPARISONS`, the costliest of each method. A preset may come with a number of clients of its own;
    then more than the order differs, as it may between two runs.
    """
    clients = frames.clients.groupby("variant")["client"].nunique()
    summary = frames.summary.assign(round_s=frames.summary["simulated_s"] / frames.summary["rounds"])
    round_s = summary.pivot_table(index="seed", columns="variant", values="round_s")

    def rest(variant: Variant) -> tuple[object, ...]:
        return variant.run.folder, clients[variant.label], variant.method, *_words(variant)[1]

    arrival = {rest(variant): (variant, numbers) for variant, numbers in found if variant.order == ARRIVAL_ORDER}
    costs = []
    for variant, numbers in found:
        if variant.order not in (None, ARRIVAL_ORDER) and rest(variant) in arrival:
            free, its = arrival[rest(variant)]
            change = float((round_s[variant.label] / round_s[free.label]).median() - 1)
            costs.append(OrderCost(variant, numbers, its, change))
    if len(costs) <= MAX_COMPARISONS:
        return [escape(_order_cost(cost)) for cost in costs]
    by_method: dict[str, list[OrderCost]] = {}
    for cost in costs:
        by_method.setdefault(cost.variant.method, []).append(cost)
    return [
        escape(_order_cost(max(alike, key=lambda cost: cost.change), of_several=len(alike) > 1))
        for alike in by_method.values()
    ]


def _words(variant: Variant) -> tuple[list[str], list[str]]:
    """Split what a variant's name says beside its order: settings of the order, and all else."""
    words = [word for word in variant.name.split(", ") if word != variant.order]
    settings = [word for word in words if word.partition("=")[0].rpartition(".")[2] in ORDER_SETTINGS]
    return settings, [word for word in words if word not in settings]


def _order_cost(cost: OrderCost, of_several: bool = False) -> str:
    """Say what an order costs and gains over arrival order."""
    settings, others = _words(cost.variant)
    where = ", ".join(dict.fromkeys([cost.variant.method, *others]))
    order = str(cost.variant.order)
    detail = f" ({', '.join(settings)})" if settings else ""
    serving = f"the costliest order is {order}{detail}: it" if of_several else f"serving in {order} order{detail}"
    sentence = (
        f"With {where}, {serving} takes {_compared(cost.change)} arrival order "
        f"with the same clients (medians: {duration(_round_s(cost.ours))} against {duration(_round_s(cost.arrival))} a "
        "round)"
    )
    ours, arrival = cost.ours, cost.arrival
    if math.isnan(ours["accuracy"]) or math.isnan(arrival["accuracy"]):
        return sentence + "."
    return (
        f"{sentence}; it ends with {percent(ours['accuracy'])} accuracy against {percent(arrival['accuracy'])}, and a "
        f"performance gap of {points(ours['performance_gap'])} against {points(arrival['performance_gap'])} points."
    )


def _round_s(numbers: Numbers) -> float:
    return float(numbers["simulated_s"] / numbers["rounds"])


def _compared(change: float) -> str:
    if abs(change) < 0.0005:
        return "the same simulated time as"
    share = percent(abs(change), 0 if abs(change) >= 0.1 else 1)
    return f"{share} {'more' if change > 0 else 'less'} simulated time than"


def warnings(frames: Frames) -> list[str]:
    """The sentences on all runs, with the name of its run before each."""
    return [f"{run.name}: {text}" for run in frames.runs for text in _warnings(run)]


def _warnings(run: Run) -> list[str]:
    texts = [*_repriced(run), *_unfinished(run)]
    if changed := changed_files(run.folder):
        texts.append(f"{', '.join(changed)} is not what the run has written, by its SHA256SUMS: figures may be wrong.")
    texts += _first(_unheld(run), "more seeds leave labels without a holder; clients.parquet has all.")
    diverged = run.rounds[run.rounds["accuracy"].notna() & ~np.isfinite(run.rounds["loss"].astype(float))]
    found = [
        f"{variant} with seed {seed} diverged in round {rounds['round'].min()}. Its loss is no longer a "
        "number, and its accuracy is that of guessing; a smaller learning rate may help."
        for (variant, seed), rounds in diverged.groupby(["variant", "seed"], sort=False)
    ]
    texts += _first(found, "more diverged; rounds.parquet has the losses of all.")
    skipped = run.rounds[run.rounds["skipped"] > 0]
    found = [
        f"{variant} with seed {seed} left out {plural(rounds['skipped'].sum(), 'update')} with gradients that were "
        f"no finite numbers, the first in round {rounds['round'].min()} (train.on_nan: skip); a smaller learning "
        "rate may help."
        for (variant, seed), rounds in skipped.groupby(["variant", "seed"], sort=False)
    ]
    texts += _first(found, "more left out updates; rounds.parquet has their numbers.")
    if run.rounds["accuracy"].isna().all() and "repriced_from" not in run.manifest:
        texts.append(
            "timing-only. Nothing was trained, so there is no accuracy; time and bytes are those of a training run"
            f"{_unread(run)}."
        )
    return texts


def _unheld(run: Run) -> list[str]:
    """Sentences on the labels of which no client holds a training sample."""
    names = run.labels.drop_duplicates("label").set_index("label")["label_name"]
    found: dict[tuple[Any, str], str] = {}
    for (variant, seed), clients in run.clients.dropna(subset="label_samples").groupby(["variant", "seed"], sort=False):
        absent = np.flatnonzero(np.sum(list(clients["label_samples"]), axis=0) == 0)
        if len(absent):
            told = ", ".join(str(names.get(label, label)) for label in absent)
            found.setdefault(
                (seed, told), f"no client of {variant} with seed {seed} holds a training sample of {told}."
            )
    return list(found.values())


def _first(texts: list[str], more: str) -> list[str]:
    """Give the first `MAX_ALIKE` texts that say the same of different runs, and the number of those left out."""
    n_more = len(texts) - MAX_ALIKE
    return [*texts[:MAX_ALIKE], f"{n_more:,} {more}"] if n_more > 0 else texts


def _repriced(run: Run) -> list[str]:
    """Sentences on a run whose times are not of the world where it was trained."""
    source = run.manifest.get("repriced_from")
    if source is None:
        return []
    texts = [
        (
            f"repriced from {source['folder']}. Times are those of the system configuration below, in which "
            "nothing was trained; accuracies are those of that run."
        )
    ]
    doubtful: dict[str, list[dict[str, Any]]] = {}
    for verdict in run.manifest["repriced"]:
        if verdict["reason"] is not None:
            doubtful.setdefault(verdict["variant"], []).append(verdict)
    for variant, (first, *others) in doubtful.items():
        more = f", and {plural(len(others), 'more seed')}" if others else ""
        texts.append(f"{variant} (seed {first['seed']}{more}) {_doubt(first)}")
    return texts


def _doubt(verdict: dict[str, Any]) -> str:
    if not verdict["rounds"]:
        return f"is left out: {verdict['reason']}."
    held = f" What it learned holds for {plural(verdict['valid_rounds'], 'round')}." if verdict["valid_rounds"] else ""
    return f"must be trained with this system configuration to know what it learns: {verdict['reason']}.{held}"


def _unfinished(run: Run) -> list[str]:
    """Sentences on what is missing of a run that was interrupted, and on variants that failed."""
    status, failed = run.manifest.get("status"), run.manifest.get("failed") or []
    texts = []
    if status != "complete" and not (status == "failed" and failed):
        planned = (run.scenario.get("train") or {}).get("rounds", "?")
        texts.append(
            f"{status} after round {run.rounds['round'].max()} of {planned}. What follows is what was stored "
            "until then; variants and seeds may have reached different rounds."
        )
    found = []
    for one in failed:
        mine = (run.rounds["variant"] == one["variant"]) & (run.rounds["seed"] == one["seed"])
        what = f"What follows has its first {plural(mine.sum(), 'round')}." if mine.any() else "It is not shown."
        found.append(f"{one['variant']} with seed {one['seed']} failed: {one['error']}. {what}")
    return texts + _first(found, "more failed; manifest.json lists them all.")


def _unread(run: Run) -> str:
    """Say, as the end of a sentence, what differs where replay was to follow a norm that was not measured."""
    options = [one for one in run.summary["method_options"] if isinstance(one, dict)]
    p0 = {f"{one['p0']:g}" for one in options if one.get("proportion") in ADAPTIVE}
    if not p0:
        return ""
    return (
        f", except that the proportion of replay stays at p0 = {' or '.join(sorted(p0))}, since its rule "
        "reads a gradient norm that is known only after training"
    )
