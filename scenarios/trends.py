"""Decides which trends of a paper hold in the runs of a study; the verdicts.py of all studies use it.

The rule (docs/methods/README.md, "Scaling down"): two variants differ if their medians over seeds are more than one
pooled standard deviation apart. A trend is *reproduced* if all its comparisons point the paper's way by more than that,
*not reproduced* if any points the other way by more than that, else *not distinguishable*. `>=` allows ties: medians
must not point the other way at all. `~` requires that two medians differ by no more than that, or by no more than a
tie, which is two points unless given. `a ~<= b` requires the same, but b may be greater by any amount; in `a ~>= b`
a may be.

A seed that misses the target is infinitely late, and then there is no standard deviation. If a seed of either variant
misses it, they differ if every seed of the one is ahead of every seed of the other; if seeds of both miss it, the
comparison is open.

A seed whose training diverges (`train.on_nan: stop`) has no figure: medians are over the others, and paired differences
over the seeds that have both. With fewer than two seeds on a side the comparison is open.

Beside the verdict stands the mean of the paired differences, seed by seed, with its 95 % confidence interval (Student's
t): variants share clients, order and initial weights of a seed, so this is the finer measure. If the interval contains
0, the number of seeds is told at which it would not, were mean and spread to stay as they are.

If two variants are equal in truth, `<` or `>` holds by chance about once in ten times with five seeds, and fails as
often; with three seeds once in six. So the number of seeds that point the paper's way is printed as well. A true
difference of one standard deviation is found with three seeds every other time, one of two standard deviations five
times in six. These figures are from a simulation of independent normal numbers; variants share data, order and initial
weights of a seed, which makes differences by chance rarer. With misses, three seeds a variant differ by chance once in
twenty times in each direction.
"""

from __future__ import annotations

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
from scipy.stats import t

from sfl_sim.errors import NonFiniteError
from sfl_sim.report.results import TO_TARGET
from sfl_sim.scenario.concerns import NOT_LEARNED, differences
from sfl_sim.scenario.load import load
from sfl_sim.scenario.shipped import scenario_file, scenario_names

TIE = 2.0
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
class Claim:
    """Comparison `left sign right`; each side is a name and its figures by seed."""

    left: tuple[str, np.ndarray]
    sign: str
    right: tuple[str, np.ndarray]
    tie: float = TIE

    @property
    def turned(self) -> tuple[np.ndarray, np.ndarray]:
        """Figures of both sides, negated for `<`, so that the left side is the larger one in the paper."""
        turn = -1 if "<" in self.sign else 1
        return turn * self.left[1], turn * self.right[1]

    @property
    def verdict(self) -> str:
        """Verdict `holds`, `fails`, or `open` if the two differ by less than one pooled standard deviation."""
        left, right = map(known, self.turned)
        if min(len(left), len(right)) < 2:
            return "open"
        if np.isinf(left).any() or np.isinf(right).any():
            ahead, behind = left.min() > right.max(), left.max() < right.min()
            return "fails" if behind or (ahead and self.sign == "~") else "holds" if ahead else "open"
        pooled = np.sqrt((left.var(ddof=1) + right.var(ddof=1)) / 2)
        ahead = np.median(left) - np.median(right)
        if "~" in self.sign:
            apart = abs(ahead) if self.sign == "~" else -ahead
            return "holds" if apart <= max(pooled, self.tie) else "fails"
        if self.sign == ">=" and ahead >= 0:
            return "holds"
        return "open" if abs(ahead) <= pooled else "holds" if ahead > 0 else "fails"

    def __str__(self) -> str:
        left, right = (f"{name} {spread(figures)}" for name, figures in (self.left, self.right))
        if "~" in self.sign:
            return f"{left} {self.sign} {right} ({self.verdict})"
        both = ~np.isnan(self.left[1]) & ~np.isnan(self.right[1])
        ours, theirs = (side[both] for side in self.turned)
        seeds = f"{(ours > theirs).sum()} of {both.sum()} seeds{paired(self.left[1][both] - self.right[1][both])}"
        return f"{left} {self.sign} {right} ({self.verdict}, {seeds})"


Trends = Sequence[tuple[Callable[..., Mapping[str, list[Claim] | str]], Sequence[str]]]
"""Functions that judge, and the names of the scenarios whose tables they take."""


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
    text = f", paired {mean:+.{places}f} [{mean - half:+.{places}f}, {mean + half:+.{places}f}]"
    if abs(mean) > half or not error:
        return text
    needed = next((m for m in range(n + 1, 1000) if t.ppf(0.975, m - 1) * error * math.sqrt(n / m) < abs(mean)), None)
    return f"{text}, {needed or 'over 1,000'} seeds would decide"


def decimals(figures: np.ndarray) -> int:
    """Decimal places with which the standard deviation has a digit that is not 0; one at least."""
    deviation = figures.std(ddof=1)
    return 1 if deviation < 1e-9 or deviation >= 0.05 else math.ceil(-math.log10(deviation))


def spread(figures: np.ndarray) -> str:
    """Text of median ± standard deviation; if seeds miss the target, median and number of seeds that reach it."""
    figures = known(figures)
    if len(figures) < 2:
        return f"{figures[0]:.1f} (one seed)" if len(figures) else "diverged"
    middle, reached = np.median(figures), np.isfinite(figures).sum()
    if reached == len(figures):
        places = decimals(figures)
        return f"{middle:.{places}f} ± {figures.std(ddof=1):.{places}f}"
    return f"{middle:.1f} [{reached} of {len(figures)}]" if math.isfinite(middle) else f"not reached [{reached}]"


def chain(figures: Figures, *signs: str, tie: float = TIE) -> list[Claim]:
    """Comparisons of neighbours: `a sign b sign c ...`."""
    pairs = zip(figures.items(), signs, list(figures.items())[1:], strict=False)
    assert len(signs) == len(figures) - 1
    return [Claim(left, sign, right, tie) for left, sign, right in pairs]


def alike(figures: Figures) -> list[Claim]:
    """Comparisons of every pair by `~`."""
    return [Claim(one, "~", other) for one, other in combinations(figures.items(), 2)]


def one_against(name: str, sign: str, figures: Figures) -> list[Claim]:
    """Comparisons of one with each of the others: `name sign other`."""
    return [Claim((name, figures[name]), sign, other) for other in figures.items() if other[0] != name]


def verdict(claims: list[Claim]) -> str:
    """Verdict on a trend by the rule above; a trend without comparisons is not judged."""
    if not claims:
        return "not judged"
    verdicts = {claim.verdict for claim in claims}
    return "not reproduced" if "fails" in verdicts else "not distinguishable" if "open" in verdicts else "reproduced"


def judged(study: str, trends: Trends, kind: type[Table] = Table) -> dict[str, list[Claim] | str]:
    """Comparisons by trend of all scenarios of a study that were run, whose runs are opened as `kind`."""
    found: dict[str, list[Claim] | str] = {}
    for judge, names in trends:
        tables = [kind(reports_folder() / f"{study}_{name}") for name in names]
        if all(table.exists for table in tables):
            found |= judge(*tables)
    return found


def print_verdicts(found: Mapping[str, list[Claim] | str], units: str) -> None:
    """Print a Markdown table of trends, sorted by name; a text instead of comparisons says why there are none."""
    print(f"| trend | verdict | comparisons (median ± std over seeds, {units}) |\n|---|---|---|")
    for name, claims in sorted(found.items()):
        told = (claims, "") if isinstance(claims, str) else (verdict(claims), "; ".join(map(str, claims)))
        print(f"| {name} | {' | '.join(told)} |")


def reports_folder() -> Path:
    """Folder that holds the runs: the only argument of the command, by default `reports`."""
    return Path(sys.argv[1] if len(sys.argv) > 1 else "reports")
