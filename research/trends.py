"""Decides which claims of a paper hold in the runs of a study; the verdicts.py of all studies use it.

A claim is a list of comparisons of two variants, `left > right` and the like. Each is judged by the paired differences,
seed by seed, since variants share the clients, the order and the initial weights of a seed. A claim is

- *reproduced* if every comparison holds: its differences lie on the paper's side by more than chance;
- *refuted* if any comparison fails: its differences lie on the other side by more than chance;
- else *undecided*. Then the number of seeds is told that would decide it, were means and spreads to stay as they are.

More than chance means a one-sided t-test, corrected by Holm's method among all comparisons of the claim: 2.5 % for
the paper's side and 2.5 % for the other. That bounds three errors, however comparisons depend on each other:

- *reproduced*, though a comparison is not on the paper's side: at most 2.5 %. All must hold, so this one must, and its
  own test, corrected or not, passes in at most 2.5 % (an intersection-union test). Many comparisons make it rarer.
- *refuted*, though no comparison is on the other side: at most 2.5 %. One that fails by chance would do, so here it is
  the correction that counts: Holm's bounds the chance of any at all.
- so a claim's verdict is wrong in at most 5 %. Holm's correction on the paper's side is not needed for that. It is
  there for sentences on one comparison of a claim: that any that is said to hold or to fail does not is as rare.

`>=` is decided like `>`. "No effect" and "as good as" need a margin, in the unit of the figures, that was fixed before
the runs: `~` holds if the differences lie within the margin on both sides (two one-sided tests) and fails if they lie
outside; `~>=` holds if they lie above minus the margin and fails if below. Without a margin neither is ever decided.

A seed that misses a target is infinitely late. Then there is no mean, and the sign test takes the t-test's place: it
counts seeds, those that both variants miss for neither, and needs six at least. So it does where all differences are
equal, in which there is no spread. A seed whose training diverged (`train.on_nan: stop`) has no figure, and no pair.

research/tests/test_trends.py simulates the rule: its error rates with equal variants, gaps, ties and noise with heavy
tails, and what it finds with how many seeds.
"""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import binom, t

from sfl_sim.errors import NonFiniteError
from sfl_sim.report.results import TO_TARGET
from sfl_sim.scenario.concerns import NOT_LEARNED, differences
from sfl_sim.scenario.files import scenario_file, scenario_names
from sfl_sim.scenario.load import load

ALPHA = 0.05
"""Chance that the verdict on a claim is wrong, at most: half of it for each side."""
MOST_SEEDS = 1000
FIRST_NEW_SEED = 100
"""Margins that a study lacked were fixed on 27 November 2026; none of its runs had this seed or a later one by then."""
Figures = dict[str, np.ndarray]
"""Name of what is compared -> one number per seed, shape (seeds,)."""


@dataclass(frozen=True)
class Table:
    """Run of one scenario, complete but for trials that diverged."""

    folder: Path

    @property
    def exists(self) -> bool:
        """Whether the scenario was run at all."""
        return (self.folder / "manifest.json").exists()

    @cached_property
    def variants(self) -> pd.DataFrame:
        """Rows of summary.json, those of trials that diverged included, with what they had reached before."""
        if not self.exists:
            raise SystemExit(
                f"{self.folder} is not there: run the scenario {self.folder.name.replace('_', '/', 1)} first"
            )
        status = json.loads((self.folder / "manifest.json").read_text())["status"]
        found = pd.DataFrame(json.loads((self.folder / "summary.json").read_text())["variants"])
        is_usable = status == "complete" or (status == "failed" and self.diverged)
        if not is_usable or found["seed"].nunique() < 2:
            raise SystemExit(
                f"{self.folder} is {status}, seeds: {found['seed'].nunique()}; a complete run of two or more is needed"
            )
        if changes := self._changes():
            print(f"{self.folder} is not the study, whose verdicts need its settings: {changes}", file=sys.stderr)
        return found.sort_values("seed")

    def margin(self, wanted: float) -> float | None:
        """The margin `wanted`, if it was fixed before the run: all its seeds are new."""
        return wanted if self.variants["seed"].min() >= FIRST_NEW_SEED else None

    @cached_property
    def diverged(self) -> list[tuple[str, int]]:
        """Variant and seed of the trials that diverged; none if any failed otherwise."""
        failed = json.loads((self.folder / "manifest.json").read_text()).get("failed", [])
        alike = all(each["error"].startswith(NonFiniteError.__name__) for each in failed)
        return [(each["variant"], each["seed"]) for each in failed if alike]

    def _changes(self) -> str:
        """Tell in which settings the run differs from the scenario of the study; empty if in none."""
        stored, study = self.folder / "scenario.yaml", self.folder.name.replace("_", "/", 1)
        if not stored.exists() or study not in scenario_names():
            return ""
        changed = differences(load(stored).base, load(scenario_file(study)).base, NOT_LEARNED)
        changed.pop("data.path", None)  # where a file lies is nobody's choice
        return ", ".join(f"{key} {ours} (study: {theirs})" for key, (ours, theirs) in changed.items())

    def __call__(self, key: str, names: Mapping[str, str], scale: float = 100) -> Figures:
        """Figures `key` by seed, times `scale`, of the variants in `names` (short name -> name of the variant).

        NaN where a seed diverged.
        """
        figures = self.variants.pivot(index="seed", columns="name", values=key).astype(float)
        if missing := set(names.values()) - set(figures):
            raise SystemExit(f"{self.folder} has no variant {', '.join(sorted(missing))}: its grid is not the study's")
        if key in TO_TARGET:
            figures = figures.fillna(math.inf)
        for name, seed in self.diverged:
            figures.loc[seed, name] = math.nan
        if figures[list(names.values())].isna().all(axis=None):
            raise SystemExit(f"{self.folder} has no {key}: it was run by the clock alone")
        return {called: scale * figures[name].to_numpy() for called, name in names.items()}


@dataclass(frozen=True)
class Comparison:
    """Comparison `left sign right`; each side is a name and its figures by seed. `~` needs a margin to be decided."""

    left: tuple[str, np.ndarray]
    sign: str
    right: tuple[str, np.ndarray]
    margin: float | None = None

    @property
    def differences(self) -> np.ndarray:
        """Left minus right of the seeds that have both, negated for `<`, so that above 0 is the paper's side.

        0 where both miss the target.
        """
        left, right = self.left[1], self.right[1]
        with np.errstate(invalid="ignore"):
            apart = np.where(left == right, 0.0, left - right)
        return (-1 if "<" in self.sign else 1) * apart[~np.isnan(left) & ~np.isnan(right)]

    def __str__(self) -> str:
        left, right = (f"{name} {spread(figures)}" for name, figures in (self.left, self.right))
        return f"{left} {self.sign} {right}"


Claim = Sequence[Comparison]
Trends = Sequence[tuple[Callable[..., Mapping[str, Claim | str]], Sequence[str]]]
"""Functions that judge, and the names of the scenarios whose tables they take."""


def p_above(differences: np.ndarray) -> np.ndarray:
    """Chance (...) that differences by seed (..., seeds) lie so far above 0 if in truth they do not: a one-sided test.

    The t-test of their mean; the sign test where some are infinite or all are equal.
    """
    n = differences.shape[-1]
    if n < 2:
        return np.ones(differences.shape[:-1])
    with np.errstate(invalid="ignore", divide="ignore"):
        by_mean = t.sf(differences.mean(-1) / differences.std(-1, ddof=1) * math.sqrt(n), n - 1)
    by_sign = binom.sf((differences > 0).sum(-1) - 1, n, 0.5)
    return np.where(_has_spread(differences), by_mean, by_sign)


def _has_spread(differences: np.ndarray) -> np.ndarray:
    """Whether all differences (..., seeds) are finite, and not equal but for rounding."""
    with np.errstate(invalid="ignore"):
        return np.ptp(differences, axis=-1) > 1e-9 * np.abs(differences).max(-1)


def p_values(differences: np.ndarray, sign: str, margin: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Chances (...) of such differences (..., seeds) if in truth the comparison does not hold, and does not fail."""
    if "~" in sign and margin is None:
        return np.ones(differences.shape[:-1]), np.ones(differences.shape[:-1])
    reach = margin or 0.0
    if sign != "~":
        return p_above(differences + reach), p_above(-differences - reach)
    holds = np.maximum(p_above(reach + differences), p_above(reach - differences))
    return holds, np.minimum(1, 2 * np.minimum(p_above(differences - reach), p_above(-differences - reach)))


def holm(p: np.ndarray) -> np.ndarray:
    """P-values (..., comparisons), corrected by Holm's method (1979): below a level if the comparison passes at it."""
    order = np.argsort(p, axis=-1)
    steps = np.take_along_axis(p, order, -1) * np.arange(p.shape[-1], 0, -1)
    found = np.minimum(np.maximum.accumulate(steps, axis=-1), 1)
    return np.take_along_axis(found, np.argsort(order, axis=-1), -1)


def decide(holds: np.ndarray, fails: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Decide comparisons and claims by p-values (..., comparisons).

    Returns:
        comparisons: (..., comparisons) 1 that hold, -1 that fail, 0 that are open.
        claims: (...) 1 that are reproduced, -1 that are refuted, 0 that are undecided.
    """
    comparisons = (holm(holds) <= ALPHA / 2).astype(int) - (holm(fails) <= ALPHA / 2)
    return comparisons, np.where((comparisons < 0).any(-1), -1, (comparisons > 0).all(-1))


def decided(claim: Claim) -> tuple[list[int], int]:
    """Decide the comparisons of a claim, and the claim, as `decide` does."""
    of = [p_values(each.differences, each.sign, each.margin) for each in claim]
    comparisons, whole = decide(*np.array(of, float).T)
    return comparisons.tolist(), int(whole)


def known(figures: np.ndarray) -> np.ndarray:
    """The figures of seeds that did not diverge."""
    return figures[~np.isnan(figures)]


def paired(differences: np.ndarray) -> str:
    """Text of the mean of paired differences with its 95 % interval; empty if seeds miss the target, or for one."""
    n = len(differences)
    if n < 2 or not np.isfinite(differences).all():
        return ""
    mean, error = differences.mean(), differences.std(ddof=1) / math.sqrt(n)
    half, places = error * t.ppf(0.975, n - 1), decimals(differences)
    return f", paired {mean:+.{places}f} [{mean - half:+.{places}f}, {mean + half:+.{places}f}]"


def outlook(claim: Claim) -> str:
    """Text on what would decide an undecided claim: seeds, were means and spreads to stay as they are."""
    if any("~" in each.sign and each.margin is None for each in claim):
        return "no margin was fixed"
    return _would_decide(seeds_to_decide(claim))


def seeds_to_decide(claim: Claim) -> int:
    """Number of seeds that would decide an undecided claim; `MOST_SEEDS` stands for more.

    If every comparison points the paper's way, as many as the last of them needs to hold; else as many as the first
    that points the other way needs to fail.
    """
    level = ALPHA / 2 / len(claim)
    found = [_needed(each, level) for each, call in zip(claim, decided(claim)[0], strict=True) if not call]
    against = [seeds for side, seeds in found if side < 0]
    return min(against) if against else max(seeds if side else MOST_SEEDS for side, seeds in found)


def needed(comparison: Comparison, level: float) -> str:
    """Text on the seeds that would decide one comparison at a level, were mean and spread to stay as they are."""
    side, seeds = _needed(comparison, level)
    return _would_decide(seeds if side else MOST_SEEDS)


def _would_decide(seeds: int) -> str:
    return f"{seeds if seeds < MOST_SEEDS else f'over {MOST_SEEDS:,}'} seeds would decide"


def _needed(comparison: Comparison, level: float) -> tuple[int, int]:
    """To which side a comparison points, 1 the paper's or -1, and how many seeds decide it at this level."""
    differences, reach = comparison.differences, comparison.margin or 0.0
    n, is_tie = len(differences), comparison.sign == "~"
    if n < 2:
        return 0, MOST_SEEDS
    if _has_spread(differences):
        effect = reach - abs(differences.mean()) if is_tie else differences.mean() + reach
        size = abs(effect) / differences.std(ddof=1)
        chances = (t.sf(size * math.sqrt(m), m - 1) for m in range(n + 1, MOST_SEEDS))
    else:
        pro = int(((np.abs(differences) < reach) if is_tie else differences > -reach).sum())
        con = int(((np.abs(differences) > reach) if is_tie else differences < -reach).sum())
        effect, more = pro - con, max(pro, con)  # seeds that both variants miss count for neither
        chances = (binom.sf(more * m // n - 1, m, 0.5) for m in range(n + 1, MOST_SEEDS))
    level /= 2 if is_tie and effect < 0 else 1
    needed = next((m for m, chance in enumerate(chances, n + 1) if chance <= level), MOST_SEEDS)
    return int(np.sign(effect)), needed


def decimals(figures: np.ndarray) -> int:
    """Decimal places with which the standard deviation has a digit that is not 0; one at least."""
    deviation = figures.std(ddof=1)
    return 1 if deviation < 1e-9 or deviation >= 0.05 else math.ceil(-math.log10(deviation))


def spread(figures: np.ndarray) -> str:
    """Text of median ± standard deviation; if seeds miss the target, median and number of seeds that reach it."""
    figures = known(figures)
    if len(figures) < 2:
        return f"{figures[0]:.1f} (one seed)" if len(figures) else "diverged"
    middle, reached = round(float(np.median(figures)), 9), np.isfinite(figures).sum()  # as percent() of pages
    if reached == len(figures):
        places = decimals(figures)
        return f"{middle:.{places}f} ± {figures.std(ddof=1):.{places}f}"
    return f"{middle:.1f} [{reached} of {len(figures)}]" if math.isfinite(middle) else f"not reached [{reached}]"


def chain(figures: Figures, *signs: str, margin: float | None = None) -> list[Comparison]:
    """Comparisons of neighbours: `a sign b sign c ...`."""
    pairs = zip(figures.items(), signs, list(figures.items())[1:], strict=False)
    assert len(signs) == len(figures) - 1
    return [Comparison(left, sign, right, margin if "~" in sign else None) for left, sign, right in pairs]


def alike(figures: Figures, margin: float | None) -> list[Comparison]:
    """Comparisons of every pair by `~`."""
    return [Comparison(one, "~", other, margin) for one, other in combinations(figures.items(), 2)]


def one_against(name: str, sign: str, figures: Figures) -> list[Comparison]:
    """Comparisons of one with each of the others: `name sign other`."""
    return [Comparison((name, figures[name]), sign, other) for other in figures.items() if other[0] != name]


def verdict(claim: Claim) -> str:
    """Verdict on a claim by the rule above; one without comparisons is not judged."""
    if not claim:
        return "not judged"
    return {1: "reproduced", 0: "undecided", -1: "refuted"}[decided(claim)[1]]


def told(claim: Claim) -> str:
    """Text of the comparisons of a claim: medians, what each is decided to be, seeds that agree, paired difference."""
    texts = []
    for each, call in zip(claim, decided(claim)[0], strict=True):
        differences = each.differences
        agree = "" if each.sign == "~" else f", {(differences > 0).sum()} of {len(differences)} seeds"
        margin = f", margin {each.margin:g}" if each.margin is not None else ""
        raw = -differences if "<" in each.sign else differences
        word = {1: "holds", 0: "open", -1: "fails"}[call]
        texts.append(f"{each} ({word}{margin}{agree}{paired(raw)})")
    return "; ".join(texts)


def judged(study: str, trends: Trends, kind: type[Table] = Table) -> dict[str, Claim | str]:
    """Comparisons by trend of all scenarios of a study that were run, whose runs are opened as `kind`."""
    found: dict[str, Claim | str] = {}
    for judge, names in trends:
        tables = [kind(reports_folder() / f"{study}_{name}") for name in names]
        if all(table.exists for table in tables):
            found |= judge(*tables)
    return found


def print_verdicts(found: Mapping[str, Claim | str], units: str) -> None:
    """Print a Markdown table of claims, sorted by name; a text instead of comparisons says why there are none."""
    print(f"| claim | verdict | comparisons (median ± std over seeds, {units}) |\n|---|---|---|")
    for name, claim in sorted(found.items()):
        if isinstance(claim, str):
            print(f"| {name} | {claim} | |")
            continue
        word = verdict(claim)
        print(f"| {name} | {f'{word}, {outlook(claim)}' if word == 'undecided' else word} | {told(claim)} |")


def reports_folder() -> Path:
    """Folder that holds the runs: the only argument of the command, by default `reports`."""
    return Path(sys.argv[1] if len(sys.argv) > 1 else "reports")
