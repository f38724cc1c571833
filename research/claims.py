"""Decides all claims of results/claims.yaml by the rule of trends.py, and writes the pages of results.

    python -m research.claims            # writes the tables of research/results/ and of docs/results.md
    python -m research.claims changed    # lists the claims whose verdict was another one by the old rule
    python -m research.claims ship reports/forgetting_table1    # a run's figures by seed, for research/results/data

Where figures by seed are stored, they decide. Where they were lost, published means and 95 % intervals of the paired
differences have all that a t-test needs; medians and standard deviations of both sides bound it: a mean lies within one
standard deviation of its median, and no difference spreads by more than both sides together. What was not published
cannot be used: such a comparison is open, and the claim waits for another run.
"""

import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from scipy.stats import t

from research.harmony.answered import RHOS, Answered
from research.trends import MOST_SEEDS, Comparison, Table, outlook, paired, seeds_to_decide, verdict

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "research" / "results"
DATA = RESULTS / "data"
"""Figures of studies by variant and seed."""
SHIPPED = ["name", "seed", "accuracy", "best_accuracy", "client_accuracy", "hybrid_accuracy", "device_accuracy",
           "performance_gap", "accuracy_spread", "backward_transfer", "simulated_s", "bytes_up", "bytes_down",
           "rounds_to_accuracy", "time_to_accuracy_s", "bytes_to_accuracy"]  # fmt: skip
IN_POINTS = {"performance_gap", "accuracy_spread", "backward_transfer"}
"""Figures besides accuracies that claims compare in points."""
TO_TARGET = {"rounds_to_accuracy": 1, "time_to_accuracy_s": 1 / 60, "bytes_to_accuracy": 1e-9}
"""Figures to a target, and their scales: rounds, minutes, GB."""
PAGES = ROOT / "docs" / "results.md", RESULTS / "README.md", (RESULTS / "claims.yaml").with_suffix(".md")
MARKED = re.compile(r"(<!-- claims: ([^\n]*) -->\n).*?(<!-- end -->)", re.DOTALL)
WORDS = "reproduced", "refuted", "undecided", "not run"
NUMBER = r"[+-]?\d+(?:\.\d+)?"
INTERVAL = re.compile(rf"({NUMBER}) \[({NUMBER}), ({NUMBER})\](?: \((\d+)\))?")
SIDES = re.compile(rf"({NUMBER}) ± ({NUMBER}) : ({NUMBER})(?: ± ({NUMBER}))?")
REPEATED = re.compile(r"(.*) x(\d+)")
TITLES = ("claim", "whose", "verdict", "differences", "the paper", "here", "study, regime")
FEASIBLE = 100
"""Most seeds that a study can have: a claim that needs more, were means and spreads to stay, is folded away."""
WIDTH_PX, ROW_PX = 120, 9
"""Width of the figure of a claim's differences, and the height of one of them."""


def comparisons(claim: Mapping[str, Any]) -> list[Comparison]:
    """The comparisons of a claim, with differences of the mean and the interval that are known; else without any."""
    margin, one_sided = claim.get("margin"), "~>=" if "margin" in claim else ">"
    sign = "~" if claim.get("tie") else one_sided
    return [_comparison(pair, sign, margin, claim) for pair in pairs(claim)]


def pairs(claim: Mapping[str, Any]) -> Iterator[Any]:
    """What is known of each comparison; `lost x4` stands for four."""
    for pair in claim["pairs"]:
        repeated = REPEATED.fullmatch(pair) if isinstance(pair, str) else None
        yield from [repeated[1]] * int(repeated[2]) if repeated else [pair]


def _comparison(pair: Any, sign: str, margin: float | None, claim: Mapping[str, Any]) -> Comparison:
    seeds = claim.get("seeds", 0)
    if isinstance(pair, Mapping):
        sign, margin = pair.get("sign", sign), pair.get("margin", margin)
        pair = pair["by seed"] if "by seed" in pair else _by_seed(claim["study"], pair)
    if isinstance(pair, list):
        differences = np.array(pair, float)
    elif found := INTERVAL.fullmatch(pair):
        mean, low, high = map(float, found.groups()[:3])
        n = int(found[4] or seeds)
        differences = _spread_out(mean, (high - low) / 2 / t.ppf(0.975, n - 1) * math.sqrt(n), n)
    elif found := SIDES.fullmatch(pair):
        differences = _at_worst(found, margin or 0.0, sign, seeds)
    elif pair in ("excludes 0", "contains 0", "missed", "lost"):
        differences = np.full(seeds, np.nan)
    else:
        raise SystemExit(f"claims.yaml: {pair!r} is no pair; allowed: an interval, two sides, a list, excludes 0, "
                         "contains 0, missed, lost")  # fmt: skip
    return Comparison(("left", differences), sign, ("right", np.zeros(len(differences))), margin)


def _by_seed(study: str, pair: Mapping[str, Any]) -> list[float]:
    """Give the differences of a figure between two variants of a study, of two figures, or from a number, by seed.

    A seed that misses a target is infinitely late; the difference is 0 where both sides miss it.
    """
    table = pd.read_csv(DATA / f"{study.replace('/', '_')}.csv").set_index(["name", "seed"])
    table = table.fillna(dict.fromkeys(TO_TARGET, math.inf))
    of, against = pair["of"], pair.get("against", pair["of"])
    is_share = of in IN_POINTS or of.endswith(("accuracy", "probability")) or of.startswith("place")
    scale = TO_TARGET.get(of, 100 if is_share else 1)
    sides = pd.DataFrame(
        {
            word: table.loc[pair[word], figure] if isinstance(pair[word], str) else pair[word]
            for word, figure in (("more", of), ("than", against))
        }
    )
    left, right = ((word, figures.to_numpy()) for word, figures in sides.items())
    return (scale * Comparison(left, ">", right).differences).tolist()


def ship(folder: Path) -> Path:
    """Write the figures of a run by variant and seed, without trials that diverged; gives the file."""
    run = Table(folder)
    found = run.variants[[each not in run.diverged for each in run.variants[["name", "seed"]].itertuples(False, None)]]
    target = DATA / f"{folder.name}.csv"
    target.parent.mkdir(exist_ok=True)
    kept = [column for column in SHIPPED if found[column].notna().any()]
    if found["reference"].notna().any():
        found = found.join(at_equal_bytes(folder, found), on=["name", "seed"])
        kept.append("equal_bytes_accuracy")
    labels = pd.read_parquet(folder / "labels.parquet")
    labels = labels[(labels["round"] > labels["round"].max() - 5) & (labels["position"] >= 0)]
    if len(labels):  # accuracy by place in a cyclic order, median of the last five rounds
        labels = labels.assign(position=labels["position"] + 1)
        places = labels.pivot_table("accuracy", ["variant", "seed"], "position", "median").add_prefix("place_")
        found = found.join(places, on=["name", "seed"])
        kept += list(places.columns)
    test = yaml.safe_load((folder / "scenario.yaml").read_text(encoding="utf-8"))["data"].get("test", {})
    if test.get("kind") == "rho_ood":  # a smaller rho is a part of the same test sets
        for rho in RHOS:
            told = Answered(folder).at(rho)[["accuracy", "offload_probability"]].add_prefix(f"rho_{rho}_")
            found = found.join(told, on=["name", "seed"])
            kept += list(told.columns)
    found.sort_values(["name", "seed"])[kept].to_csv(target, index=False, float_format="%.6g", lineterminator="\n")
    return target


def at_equal_bytes(folder: Path, found: pd.DataFrame) -> pd.Series:
    """Give by variant and seed the accuracy at the bytes of the reference that the variant's target refers to.

    It is the median of the last five rounds that end within the bytes, up and down, that the reference has moved in all
    its rounds with the same seed; without one if the reference diverged.
    """
    own = found.set_index(["name", "seed"])
    allowed = own[["bytes_up", "bytes_down"]].sum(axis=1).rename("allowed").rename_axis(["reference", "seed"])
    rounds = pd.read_parquet(folder / "rounds.parquet").sort_values("round").rename(columns={"variant": "name"})
    rounds = rounds.join(own["reference"], on=["name", "seed"]).join(allowed, on=["reference", "seed"])
    moved = (rounds["bytes_up"] + rounds["bytes_down"]).groupby([rounds["name"], rounds["seed"]]).cumsum()
    within = rounds[moved <= rounds["allowed"]].dropna(subset="accuracy")
    last = within.groupby(["name", "seed"])["accuracy"].agg(lambda of: of.tail(5).median())
    return last.rename("equal_bytes_accuracy")


def _spread_out(mean: float, deviation: float, n: int) -> np.ndarray:
    """Differences (n,) with this mean and standard deviation."""
    places = np.arange(n) - (n - 1) / 2
    return mean + deviation * places / places.std(ddof=1)


def _at_worst(sides: re.Match[str], margin: float, sign: str, n: int) -> np.ndarray:
    """Differences (n,) that decide as little as these medians and standard deviations allow; NaN if they allow all."""
    rounding = max(10.0 ** -len(number.partition(".")[2]) / 2 for number in sides.groups() if number)
    middle, deviation, other, other_deviation = (float(number or 0) for number in sides.groups())
    constant = sides[4] is None
    most = deviation + rounding + (0 if constant else other_deviation + rounding)
    slack = most * math.sqrt((n - 1) / n) + rounding * (1 if constant else 2)
    apart = middle - other
    edges = [-margin, margin] if sign == "~" else [-margin]
    if any(edge - slack <= apart <= edge + slack for edge in edges):
        return np.full(n, np.nan)
    nearest = min(edges, key=lambda edge: abs(apart - edge))
    return _spread_out(apart - math.copysign(slack, apart - nearest), most, n)


def outcome(claim: Mapping[str, Any]) -> str:
    """Text of the verdict on a claim, and of what would decide it."""
    if "not_run" in claim:
        return f"not run: {claim['not_run']}"
    told = comparisons(claim)
    word = verdict(told)
    if word != "undecided":
        return word
    return f"{word}: {_why(claim, told)}"


def folded(claim: Mapping[str, Any]) -> str:
    """Why a claim is folded away; empty if it is not: it is superseded, or no feasible number of seeds decides it."""
    if "superseded" in claim:
        return f"superseded: {claim['superseded']}"
    if "not_run" in claim or verdict(told := comparisons(claim)) != "undecided":
        return ""
    is_known = not any(np.isnan(each.left[1]).any() or ("~" in each.sign and each.margin is None) for each in told)
    seeds = seeds_to_decide(told) if is_known else 0
    return f"{seeds if seeds < MOST_SEEDS else f'over {MOST_SEEDS:,}'} seeds would decide" if seeds > FEASIBLE else ""


def shown(claims: list[dict[str, Any]], is_folded: bool) -> list[dict[str, Any]]:
    """The claims that are folded away, or the others."""
    return [claim for claim in claims if bool(folded(claim)) == is_folded]


def _why(claim: Mapping[str, Any], told: list[Comparison]) -> str:
    if claim.get("tie") and claim.get("margin") is None:
        return "no margin was fixed"
    known = list(pairs(claim))
    is_lost = [np.isnan(each.left[1]).any() for each in told]
    if all(pair == "missed" or not lost for pair, lost in zip(known, is_lost, strict=True)):
        return "six seeds at least, since seeds miss the target" if "missed" in known else outlook(told)
    is_open = any(
        pair == "contains 0" or not (lost or verdict([each]) == "reproduced")
        for each, pair, lost in zip(told, known, is_lost, strict=True)
    )
    return "not all hold" if is_open else "figures by seed are lost"


def table(claims: list[dict[str, Any]], studies: Mapping[str, Mapping[str, Any]], is_folded: bool) -> list[str]:
    """Lines of a Markdown table with a row for each claim that is folded away, or is not."""
    lines = [f"| {' | '.join(TITLES)} |", "|---" * len(TITLES) + "|"]
    for claim in shown(claims, is_folded):
        name = claim.get("study")
        study = studies[name] if name else {}
        about = f"{study['regime']}; {_day(study['settings'])}, {_day(study['runs'])}" if study else "–"
        is_after = study and "added" in claim and claim["added"] >= study["runs"]
        about += f"; row added {_day(claim['added'])}, after the runs" if is_after else ""
        whose = "claim of the paper" if "at" in claim else "question of ours"
        theirs = ", ".join(filter(None, [claim.get("at"), claim.get("theirs")])) or "–"
        word, _, why = outcome(claim).partition(":")
        told = f'<span class="verdict {word.replace(" ", "-")}">**{word}**</span>{":" * bool(why)}{why}'
        where = f"`{name}` {about}" if name else "–"
        told = f"{told}, {folded(claim)}" if "superseded" in claim else told
        cells = claim["claim"], whose, told, figure(claim), theirs, claim.get("ours", "–"), where
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def figure(claim: Mapping[str, Any]) -> str:
    """Draw the 95 % intervals of the differences that are known, on one axis with 0, as SVG; a dash without any.

    The paper's side is right of the line at 0, that of a tie between the two lines of its margin. The title, which a
    browser shows, has the numbers.
    """
    told = [each.left[1] for each in comparisons(claim)] if "pairs" in claim else []
    known = [each for each in told if len(each) > 1 and np.isfinite(each).all()]
    if not known:
        return "–"
    middles = np.array([each.mean() for each in known])
    halves = np.array([each.std(ddof=1) / math.sqrt(len(each)) * t.ppf(0.975, len(each) - 1) for each in known])
    margin = claim.get("margin") or 0.0
    low, high = min(-margin, (middles - halves).min()), max(margin, (middles + halves).max())
    scale = (WIDTH_PX - 8) / (high - low or 1.0)

    def place(value: float) -> str:
        return f"{4 + scale * (value - low):.1f}"

    height = ROW_PX * len(known) + 2
    edges = [-margin, margin] if claim.get("tie") else [0.0]
    marks = [f'<path class="zero" d="M{place(edge)} 0V{height}"/>' for edge in edges]
    for number, (middle, half) in enumerate(zip(middles, halves, strict=True)):
        y = ROW_PX * number + ROW_PX // 2 + 1
        marks.append(f'<path d="M{place(middle - half)} {y}H{place(middle + half)}"/>'
                     f'<circle cx="{place(middle)}" cy="{y}" r="2.5"/>')  # fmt: skip
    numbers = ", ".join(paired(each).removeprefix(", paired ") for each in known)
    size = f'width="{WIDTH_PX}" height="{height}"'
    return f'<svg class="differences" {size} role="img"><title>{numbers}</title>{"".join(marks)}</svg>'


def _day(day: Any) -> str:
    return f"{day:%-d %b}"


def read() -> dict[str, Any]:
    """Read claims.yaml."""
    return dict(yaml.safe_load((RESULTS / "claims.yaml").read_text(encoding="utf-8")))


def page(text: str) -> str:
    """Return a page with its tables written anew: of the claims of a paper, the counts, or what had been seen."""
    found = read()

    def written(marks: re.Match[str]) -> str:
        if marks[2] == "counts":
            lines = counts(found["papers"])
        elif marks[2] == "seen":
            lines = seen(found["studies"])
        elif marks[2].startswith("verdicts of "):
            lines = verdicts(found["papers"][marks[2].removeprefix("verdicts of ")])
        elif marks[2].startswith("folded of "):
            lines = table(found["papers"][marks[2].removeprefix("folded of ")], found["studies"], is_folded=True)
        else:
            lines = table(found["papers"][marks[2]], found["studies"], is_folded=False)
        return "\n".join([marks[1], *lines, "", marks[3]])

    return MARKED.sub(written, text)


def counts(papers: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    """Lines of a Markdown table that counts the verdicts on the claims of each paper."""
    words = [*WORDS, "folded away"]
    lines = [f"| paper | {' | '.join(words)} |", "|---" * (1 + len(words)) + "|"]
    for paper, claims in papers.items():
        told = [words[-1] if folded(claim) else outcome(claim).partition(":")[0] for claim in claims]
        lines.append(f"| {paper} | {' | '.join(str(told.count(word)) for word in words)} |")
    return lines


def verdicts(claims: list[dict[str, Any]]) -> list[str]:
    """Lines of a Markdown table of claims, their verdicts in a word, and the scenarios that test them."""
    rows = [
        f"|{claim['claim']}|{claim.get('at', 'ours')}|{outcome(claim).partition(':')[0]}|{_where(claim)}|"
        for claim in shown(claims, is_folded=False)
    ]
    return ["|claim|the paper's|verdict|where|", "|---|---|---|---|", *rows]


def _where(claim: Mapping[str, Any]) -> str:
    return f"`{claim['study']}`" if "study" in claim else "–"


def seen(studies: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Lines of a Markdown table of the studies whose regime was chosen after results on the same claims."""
    rows = [f"| `{name}` | {about['seen']} |" for name, about in studies.items() if "seen" in about]
    return ["| study | seen before |", "|---|---|", *rows]


def changed() -> Iterator[str]:
    """Lines on claims whose verdict is not that of the old rule."""
    for paper, claims in read()["papers"].items():
        for claim in claims:
            now = outcome(claim)
            if now.partition(":")[0] != claim["old"]:
                yield f"{paper} | {claim['claim']} ({claim.get('study', '–')}) | {claim['old']} | {now}"


if __name__ == "__main__":
    if sys.argv[1:] == ["changed"]:
        print(*changed(), sep="\n")
    elif sys.argv[1:2] == ["ship"]:
        print(*(ship(Path(folder)) for folder in sys.argv[2:]), sep="\n")
    else:
        for file in PAGES:
            file.write_text(page(file.read_text(encoding="utf-8")), encoding="utf-8")
