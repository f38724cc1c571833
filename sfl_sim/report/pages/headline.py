"""Sentences at the top of the page of a run: what was found."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
from markupsafe import Markup, escape

from sfl_sim.metrics.costs import absence_costs
from sfl_sim.report.comparison import before_and_after
from sfl_sim.report.display import duration, listed, percent, plural, points
from sfl_sim.report.pages.costs import choice
from sfl_sim.report.results import ROUNDS, TIME, Aim, accuracy, aims, factor, in_words, medians
from sfl_sim.scenario.concerns import concern_of
from sfl_sim.scenario.fields import Concern

if TYPE_CHECKING:
    from collections.abc import Callable

    from sfl_sim.report.frames import Frames, ShownVariant
    from sfl_sim.report.results import Numbers

ARRIVAL_ORDER = "fcfs"
MAX_COMPARISONS = 3

VariantNumbers = tuple["ShownVariant", "Numbers"]


def headline(frames: Frames) -> list[Markup]:
    """Give the headlines, the most important first, each of a few sentences.

    Of several runs none is on orders: their table of differences compares them. Of a repriced run they are on those
    variants whose results of training hold.
    """
    repriced, shown = before_and_after(frames), frames.holding
    if not shown.variants:
        return [*repriced, Markup("No variant is sure to learn the same as before: all must be trained again.")]
    middle = medians(shown).to_dict("index")
    found: list[VariantNumbers] = [(variant, middle[variant.label]) for variant in shown.variants]
    sentences = _leaders(shown, found) + ([] if len(frames.runs) > 1 else _order_costs(shown, found)) + choice(shown)
    if sentences and len(shown.variants) < len(frames.variants):
        number = f"{len(shown.variants)} of {plural(len(frames.variants), 'variant')}"
        sentences[0] = escape(f"What was learned is known to hold for {number}. Of these: ") + sentences[0]
    return repriced + sentences


def _leaders(frames: Frames, found: list[VariantNumbers]) -> list[Markup]:
    if frames.timing_only:
        return [_fastest(frames, found)]
    goals = [aim for aim in aims(frames) if aim.target is not None]
    sentences = [_first_to_target(aim) for aim in goals[:MAX_COMPARISONS]]
    if len(goals) > MAX_COMPARISONS:
        sentences.append(escape(f"{plural(len(goals) - MAX_COMPARISONS, 'more target')} below."))
    return sentences if any(aim.ranking for aim in goals) else [*sentences, _most_accurate(frames, found)]


def told_by_seeds(ours: pd.Series, theirs: pd.Series, text: Callable[[float], str], doing: str = "is ahead") -> str:
    """Say how sure a lead in the medians is; nothing if the ranges over several seeds lie apart.

    Args:
        ours, theirs: a number for each seed, of the one that leads and of the next; less is better.
        text: how a reader sees such a number. What reads alike is equal: a lead of 0.2 ms in a minute is none.
        doing: what the leader does.
    """
    pairs = pd.concat({"ours": ours, "theirs": theirs}, axis="columns", join="inner")
    if pairs.empty:
        return " The ranges over seeds overlap." if ours.max() >= theirs.min() else ""
    read = pairs.map(lambda number: text(number) if math.isfinite(number) else str(number))
    equal = read["ours"] == read["theirs"]
    if equal.all():
        return " Both are equal with every seed." if len(pairs) > 1 else " Both are equal, with one seed."
    if max(len(ours), len(theirs)) == 1:
        return " This is one seed: another may say otherwise."
    if ours.max() < theirs.min():
        return ""
    ahead = int(((pairs["ours"] < pairs["theirs"]) & ~equal).sum())
    how_many = f"all {ahead}" if ahead == len(pairs) else f"{ahead} of {len(pairs)}"
    level = f", and as good with {int(equal.sum())}" if equal.any() else ""
    return f" The ranges over seeds overlap: seed by seed, the first {doing} with {how_many}{level}."


def _by_seed(frames: Frames, variant: ShownVariant, numbers: pd.Series) -> pd.Series:
    """Those of the numbers, a column like one of the summary, that belong to a variant, by seed."""
    own = frames.summary["variant"] == variant.label
    return numbers[own].set_axis(frames.summary.loc[own, "seed"])


def _fastest(frames: Frames, found: list[VariantNumbers]) -> Markup:
    ranked = sorted(((v, _round_s(numbers)) for v, numbers in found), key=lambda pair: pair[1])
    (first, least_s), *others = ranked
    lost = dict(absence_costs(frames.rounds).groupby("variant")["lost_share"].median())

    def dropping(variant: ShownVariant) -> str:
        """Say how many participants it loses, where it may lose any: what was lost is not learned."""
        share = lost.get(variant.label)
        if share is None:
            return ""
        return f" ({percent(share, 0)} of its participants drop out)" if share else " (none drop out)"

    names = [
        each.html for each, own_s in ranked if duration(own_s) + dropping(each) == duration(least_s) + dropping(first)
    ]
    takes = " takes " if len(names) == 1 else " take "
    sentence = listed(names) + takes + f"{duration(least_s)} of simulated time per round{dropping(first)}"
    if not others:
        return sentence + "."
    last, most_s = others[-1]
    if duration(most_s) == duration(least_s):
        return escape(f"Every variant takes {duration(least_s)} of simulated time per round.")
    round_s = frames.summary["simulated_s"] / frames.summary["rounds"]
    next_s = _by_seed(frames, others[0][0], round_s)
    sure = told_by_seeds(_by_seed(frames, first, round_s), next_s, duration, "is faster than the next")
    told = sentence + ", the least of all; " + last.html + f" takes the most, {duration(most_s)}{dropping(last)}."
    return told if len(names) > 1 else told + sure


def _first_to_target(aim: Aim) -> Markup:
    ranking = aim.ranking
    if not ranking:
        return escape(
            f"The target of {aim.name} is {'reached by no variant' if _some(aim) else 'not reached'}{_some(aim)}."
        )
    first, *others = ranking
    sentence = first.html + (
        f" reaches {aim.name} {'first, ' if len(aim.variants) > 1 else ''}after "
        f"{duration(TIME.median(aim.seeds(first)))} of simulated time and "
        f"{plural(ROUNDS.median(aim.seeds(first)), 'round')}{_reaching(aim, first)}"
    )
    sentence += _times_as_fast(aim, first)
    if not others:
        return sentence + (f"; no other variant reaches it{_some(aim)}." if len(aim.variants) > 1 else ".")
    second = others[0]
    needed = duration(TIME.median(aim.seeds(second))) + _reaching(aim, second)
    ours_s, theirs_s = (TIME.of_seeds(aim.seeds(each))["high"] for each in (first, second))
    sure = told_by_seeds(ours_s, theirs_s, duration)
    if second is aim.baseline:  # which the sentence has just named
        return sentence + f"; that one needs {needed}." + sure
    return sentence + "; the next is " + second.html + f" after {needed}." + sure


def _reaching(aim: Aim, variant: ShownVariant) -> str:
    """Say how many seeds reach the target, if not all do."""
    seeds = aim.seeds(variant)
    reached = int(seeds[TIME.key].notna().sum())
    return "" if reached == len(seeds) else f" (with {reached} of {plural(len(seeds), 'seed')})"


def _some(aim: Aim) -> str:
    """Qualify a sentence on those that do not reach the target, if some of their seeds do."""
    others = (aim.seeds(variant) for variant in aim.variants if variant not in aim.ranking)
    return " with more than half of its seeds" if any(seeds[TIME.key].notna().any() for seeds in others) else ""


def _times_as_fast(aim: Aim, variant: ShownVariant) -> Markup:
    """Say how it compares with the baseline, if that is another one and did run."""
    baseline = aim.baseline
    low, high = aim.speedup(variant, TIME)
    if baseline is None or baseline is variant or not low > 0:
        return Markup("")
    at_least = "" if low == high else "more than "
    share = f"of whose best {in_words(aim.score)} the target is {accuracy(aim.share)}"
    of_whom = f", {share if aim.reference else 'the slowest'}"
    return escape(f", {at_least}{factor(low)} as fast as ") + baseline.html + of_whom


def _most_accurate(frames: Frames, found: list[VariantNumbers]) -> Markup:
    score = frames.score
    measured = [(variant, numbers) for variant, numbers in found if not math.isnan(numbers[score])]
    (first, best), *others = sorted(measured, key=lambda pair: -pair[1][score])
    word = in_words(score)
    ending = f"the best {word}, " if others else f"{'an' if word[0] in 'aR' else 'a'} {word} of "
    sentence = first.html + (
        f" ends with {ending}{percent(best[score])}, "
        f"after {plural(best['rounds'], 'round')} and {duration(best['simulated_s'])} of simulated time"
    )
    if not others:
        return sentence + "."
    second, its = others[0]
    ours, theirs = (_by_seed(frames, each, -frames.summary[score]) for each in (first, second))
    sentence += "; the next is " + second.html + f" with {percent(its[score])}."
    return sentence + told_by_seeds(ours, theirs, percent)


def _order_costs(frames: Frames, found: list[VariantNumbers]) -> list[Markup]:
    """One sentence for each pair of variants that differ in their order alone, one of them in arrival order.

    Of more than `MAX_COMPARISONS`, the costliest of each method. A preset may come with a number of clients of its own;
    then more than the order differs.
    """
    clients = frames.clients.groupby("variant")["client"].nunique()
    summary = frames.summary.assign(round_s=frames.summary["simulated_s"] / frames.summary["rounds"])
    round_s = summary.pivot_table(index="seed", columns="variant", values="round_s")

    def rest(variant: ShownVariant) -> tuple[int, str]:
        settings = variant.run.settings[variant.name]
        return clients[variant.label], str({key: value for key, value in settings.items() if not _is_of_order(key)})

    arrival = {rest(pair[0]): pair for pair in found if pair[0].order == ARRIVAL_ORDER}
    costs = []
    for pair in found:
        variant = pair[0]
        if variant.order not in (None, ARRIVAL_ORDER) and rest(variant) in arrival:
            free = arrival[rest(variant)]
            # As a share, seed by seed, since each seed has clients of its own, alike in both variants.
            change = (round_s[variant.label] / round_s[free[0].label]).dropna() - 1
            costs.append((variant.method, change.median(), partial(_order_cost, frames, pair, free, change)))
    if len(costs) <= MAX_COMPARISONS:
        return [escape(say()) for _, _, say in costs]
    sentences = []
    for method in dict.fromkeys(method for method, _, _ in costs):
        alike = [cost for cost in costs if cost[0] == method]
        sentences.append(escape(max(alike, key=lambda cost: cost[1])[2](of_several=len(alike) > 1)))
    return sentences


def _is_of_order(key: str) -> bool:
    return concern_of(key) is Concern.ORDER


def _order_cost(
    frames: Frames, pair: VariantNumbers, free: VariantNumbers, change: pd.Series, of_several: bool = False
) -> str:
    """Say what an order costs and gains over arrival order, and what the seeds do not agree on.

    Args:
        frames: of both variants.
        pair, free: the variant with the order, and that in arrival order.
        change: how much more simulated time the order takes, as a share, by seed.
        of_several: whether it is the costliest of several orders.
    """
    (variant, ours), (other, arrival) = pair, free
    # What the variant's name says beside its order: settings of the order, and all else.
    words = [word for word in variant.name.split(", ") if word.removeprefix("order=") != variant.order]
    settings = [word for word in words if _is_of_order(f"server.{word.partition('=')[0].rpartition('.')[2]}")]
    where = ", ".join(dict.fromkeys([variant.method, *(word for word in words if word not in settings)]))
    detail = f" ({', '.join(settings)})" if settings else ""
    serving = f"serving in {variant.order} order{detail}"
    if of_several:
        serving = f"the costliest order is {variant.order}{detail}: it"
    sentence = (
        f"With {where}, {serving} takes {_compared(float(change.median()))} arrival order with the same clients "
        f"(medians: {duration(_round_s(ours))} against {duration(_round_s(arrival))} a round)"
    )
    doubts = []
    agreeing = int((change * change.median() > 0).sum())
    if change.median() and agreeing < len(change):
        more = "more" if change.median() > 0 else "less"
        doubts.append(f"only {agreeing} of {plural(len(change), 'seed')} agree that it takes {more} time")
    overlapping = []
    for name, column in (("accuracies", "accuracy"), ("performance gaps", "performance_gap")):
        one, two = (_by_seed(frames, each, frames.summary[column]).dropna() for each in (variant, other))
        if len(one) > 1 and one.max() >= two.min() and two.max() >= one.min():
            overlapping.append(name)
    if overlapping:
        doubts.append(f"the {' and the '.join(overlapping)} of both overlap over seeds")
    doubt = f" But {', and '.join(doubts)}." if doubts else ""
    if math.isnan(ours["accuracy"]) or math.isnan(arrival["accuracy"]):
        return f"{sentence}.{doubt}"
    return (
        f"{sentence}; it ends with {percent(ours['accuracy'])} accuracy against {percent(arrival['accuracy'])}, and a "
        f"performance gap of {points(ours['performance_gap'])} against {points(arrival['performance_gap'])} points."
        f"{doubt}"
    )


def _round_s(numbers: Numbers) -> float:
    return float(numbers["simulated_s"] / numbers["rounds"])


def _compared(change: float) -> str:
    if abs(change) < 0.0005:
        return "the same simulated time as"
    share = percent(abs(change), 0 if abs(change) >= 0.1 else 1)
    return f"{share} {'more' if change > 0 else 'less'} simulated time than"
