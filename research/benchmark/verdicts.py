"""Decides the trends of the benchmark's tracks, and writes the tables of research/results/benchmark.md from the CSVs.

    python -m research.benchmark.verdicts            # writes the page
    python -m research.benchmark.verdicts FOLDER     # prints the tables of a benchmark's folder

Run it from the root of the repository. The rule is that of research/trends.py, with Holm's correction over all trends
of a track: at most one in twenty tracks has any wrong verdict. Accuracies are in percent.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from research.trends import ALPHA, Comparison, decide, needed, p_values, paired, spread, verdict
from sfl_sim.report.load import BENCHMARK
from sfl_sim.report.pages.benchmark import RANKED, BenchmarkTable, load_compared, moved, ranked_by, tuning

RESULTS = Path(__file__).parents[1] / "results"
PAGE = (RESULTS / "benchmark").with_suffix(".md")
MARKED = re.compile(r"(<!-- benchmark: (\w+) of (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
CSE, HERON, SAGE = "cse_fsl, upload_every=5, first", "heron, upload_every=5, first", "fsl_sage, upload_every=5"
FEDBUFF = "fedbuff, splitfed_v1"
CSE_TEXT, HERON_TEXT = (f"{name}, aux=1, upload_every=5, first" for name in ("cse_fsl", "heron"))
BEFORE = "_28_november"
"""End of the names of tracks whose table is superseded by a later one."""
GUESSING = 10.0
"""Accuracy of guessing one of ten labels, in percent."""
UNITS = {"score": (100, "%"), "seconds_to_target": (1 / 60, "min"), "bytes_to_target": (1e-6, "MB")}
WORDS = {1: "reproduced", 0: "undecided", -1: "refuted"}
AGAINST_REST = {1: "ahead", 0: "not told apart", -1: "behind"}


@dataclass(frozen=True)
class Trend:
    """What a paper claims: `left sign right` in a column of the table; the margin of a tie is in percent.

    `right` is a variant, or a number in the column's unit.
    """

    text: str
    whose: str
    column: str
    left: str
    sign: str
    right: str | float
    margin: float | None = None

    def comparison(self, track: BenchmarkTable) -> Comparison:
        """The comparison on a track, in the column's unit; rows that are superseded are compared as they were."""
        sides = [self._side(track, side) for side in (self.left, self.right)]
        return Comparison(sides[0], self.sign, sides[1], self.margin)

    def _side(self, track: BenchmarkTable, of: str | float) -> tuple[str, np.ndarray]:
        seeds = sorted(track.own["seed"].unique())
        if not isinstance(of, str):
            return f"{of:g}", np.full(len(seeds), of)
        own = track.of(of).set_index("seed")[self.column]
        if self.column != "score":
            own = own.fillna(np.inf)  # it was trained, and missed the target
        return of.partition(",")[0], UNITS[self.column][0] * own.reindex(seeds).to_numpy()


IMAGES = {
    "a": Trend("CSE-FSL (h = 5) needs fewer bytes than V2", "CSE-FSL", "bytes_to_target", CSE, "<", "splitfed_v2"),
    "b": Trend(
        "local loss needs fewer hours than V1", "Han et al.", "seconds_to_target", "local_loss", "<", "splitfed_v1"
    ),
    "c": Trend("FSL-SAGE is more accurate than CSE-FSL", "FSL-SAGE", "score", SAGE, ">", CSE),
    "d": Trend(
        "HERON is as accurate as CSE-FSL, within 5 points", "HERON: curves as CSE's", "score", HERON, "~", CSE, 5
    ),
    "e": Trend(
        "CycleSL is more accurate than MergeSFL", "CycleSL, against PSL, SFL, SGLR", "score", "cyclesl", ">", "mergesfl"
    ),
    "f": Trend(
        "LocFedMix-SL is more accurate than MergeSFL",
        "LocFedMix-SL, against parallel SL",
        "score",
        "locfedmix",
        ">",
        "mergesfl",
    ),
    "g": Trend("S2FL is more accurate than V1", "S2FL", "score", "s2fl", ">", "splitfed_v1"),
    "h": Trend("GAS needs fewer hours than V1", "GAS", "seconds_to_target", "gas", "<", "splitfed_v1"),
    "i": Trend(
        "HO-SFL is more accurate than V1", "HO-SFL, there from trained weights", "score", "ho_sfl", ">", "splitfed_v1"
    ),
    "j": Trend(
        "MU-SplitFed is within 5 points of guessing",
        "HO-SFL; MU-SplitFed's own paper has 77.9 %",
        "score",
        "mu_splitfed",
        "~",
        GUESSING,
        5,
    ),
}
TRENDS = {
    "images": IMAGES,
    "images_unreliable": IMAGES
    | {
        "n": Trend(
            "FedBuff needs fewer hours than V1",
            "FedBuff, against synchronous federated learning",
            "seconds_to_target",
            FEDBUFF,
            "<",
            "splitfed_v1",
        ),
    },
    "text": {
        "k": Trend(
            "HO-SFL is more accurate than V1", "HO-SFL, from trained weights", "score", "ho_sfl", ">", "splitfed_v1"
        ),
        "l": Trend(
            "HERON is as accurate as CSE-FSL, within 1 point",
            "HERON: curves as CSE's",
            "score",
            HERON_TEXT,
            "~",
            CSE_TEXT,
            1,
        ),
        "m": Trend(
            "SplitFrozen needs fewer bytes than SplitLoRA",
            "SplitFrozen",
            "bytes_to_target",
            "splitfrozen",
            "<",
            "splitfed_v2",
        ),
    },
}
"""Trends of each track, by the letters under which they were fixed before its first run."""


def trends_of(track: BenchmarkTable, trends: dict[str, Trend]) -> Iterator[str]:
    """Lines of a table of a track's trends: decided together, each by itself, and with which figures."""
    yield "| trend | whose claim | verdict | by itself | figures: median ± std, paired difference |"
    yield "|---|---|---|---|---|"
    told = {letter: trend.comparison(track) for letter, trend in trends.items()}
    of = [p_values(each.differences, each.sign, each.margin) for each in told.values()]
    calls = decide(*np.array(of, float).T)[0]
    for (letter, each), call in zip(told.items(), calls, strict=True):
        trend, word = trends[letter], WORDS[int(call)]
        seeds = needed(each, ALPHA / 2 / len(told)) if not call else ""
        ahead = "" if each.sign == "~" else f", {(each.differences > 0).sum()} of {len(each.differences)} seeds"
        raw = -each.differences if "<" in each.sign else each.differences
        apart = paired(raw) if np.isfinite([each.left[1], each.right[1]]).any() else ""  # no seed arrives
        figures = f"{spread(each.left[1])} : {spread(each.right[1])} {UNITS[trend.column][1]}{apart}{ahead}"
        alone = verdict([each])
        yield (f"| ({letter}) {trend.text} | {trend.whose} | **{word}**{f': {seeds}' if seeds else ''} | "
               f"{alone if alone != word else 'the same'} | {figures} |")  # fmt: skip


def rows_of(track: BenchmarkTable) -> Iterator[str]:
    """Lines of a table of a track's variants in the order of their accuracy, then of what stands beside them."""
    has_words = track.own["perplexity"].notna().any()
    last = ["perplexity"] if has_words else ["PG", "BW"]
    titles = ["method", "tuned to", "accuracy (%)", "rank", "minutes to target", "rank", "MB to target", "rank",
              "client memory (kB)", *last]  # fmt: skip
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    ranked = {column: ranked_by(track, column) for column in RANKED}
    for name in ranked["score"]["rank"].sort_values(kind="stable").index:
        yield _row(track, name, *(_ranked(table.loc[name]) for table in ranked.values()))
    for name, why in track.beside.items():
        yield _row(track, name, why, "–", "–")


def _row(track: BenchmarkTable, name: str, *ranks: str) -> str:
    own = track.of(name)
    cells = [name, tuning(own) if own["lr"].notna().all() else "–", spread(100 * own["score"].to_numpy()), ranks[0]]
    for (column, scale), rank in zip(
        {"seconds_to_target": 1 / 60, "bytes_to_target": 1e-6}.items(), ranks[1:], strict=True
    ):
        is_judged = own["client_memory_bytes"].notna().all()
        needs = scale * own[column].fillna(np.inf)
        reached = int(np.isfinite(needs).sum())
        all_of = f"{needs.median():.1f}" if np.isfinite(needs.median()) else f"missed ({reached} of {len(own)})"
        cells += [all_of if is_judged else "–", rank]
    figures = {"client_memory_bytes": (1e-3, 0)}
    figures |= {"perplexity": (1, 3)} if track.own["perplexity"].notna().any() else {
        "performance_gap": (100, 0), "backward_transfer": (100, 0)}  # fmt: skip
    for column, (scale, places) in figures.items():
        middle = scale * (own[column].mean() if places == 0 else own[column].median())
        cells.append(f"{middle:.{places}f}" if np.isfinite(middle) else "–")
    return f"| {' | '.join(cells)} |"


def _ranked(row: pd.Series) -> str:
    return f"{row['rank']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"


def rest_of(track: BenchmarkTable) -> Iterator[str]:
    """Lines of a table of what each variant has more than clients at rest, seed by seed; not planned."""
    yield "| method | points more than clients at rest (splitfrozen) | with Holm's correction |\n|---|---|---|"
    for name, more, call in against_rest(track):
        yield f"| {name} | {paired(more).removeprefix(', paired ')} | {AGAINST_REST[call]} |"


def against_rest(track: BenchmarkTable) -> list[tuple[str, np.ndarray, int]]:
    """Give the points by seed that each variant has more than clients at rest, and whether it is ahead (1) or behind.

    Behind is -1, not told apart 0: one-sided t-tests at 2.5 %, corrected over all variants.
    """
    scores = 100 * track.by_seed("score")
    rest = scores.pop("splitfrozen")
    more = {name: (scores[name] - rest).dropna().to_numpy() for name in scores}
    calls = decide(*np.array([p_values(each, ">", None) for each in more.values()], float).T)[0]
    return [(name, each, int(call)) for (name, each), call in zip(more.items(), calls, strict=True)]


def moved_of(before: BenchmarkTable, track: BenchmarkTable) -> Iterator[str]:
    """Lines of a table of the variants that moved between two versions of a track's table, and why."""
    yield "| method | accuracy before | now | rank before | now | why |\n|---|---|---|---|---|---|"
    for row in moved(before, track):
        yield f"| {' | '.join(cell.text for cell in row)} |"


def shipped(name: str) -> BenchmarkTable:
    """The table of a track, as it is shipped."""
    return load_compared(RESULTS / "data", f"benchmark_{name}.csv")


def page(text: str) -> str:
    """Return the page with its tables written anew."""

    def written(marks: re.Match[str]) -> str:
        name = marks[3]
        told = {"rows": rows_of, "rest": rest_of, "moved": lambda track: moved_of(shipped(name + BEFORE), track),
                "trends": lambda track: trends_of(track, TRENDS[name.removesuffix(BEFORE)])}  # fmt: skip
        lines = told[marks[2]](shipped(name))
        return "\n".join([marks[1], *lines, "", marks[4]])

    return MARKED.sub(written, text)


def main() -> None:
    """Write the page, or print the tables of a folder."""
    if not sys.argv[1:]:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    track = load_compared(Path(sys.argv[1]), BENCHMARK)
    trends = TRENDS.get(str(track.own["track"].iloc[0]).removeprefix("benchmark_"))
    print(*rows_of(track), "", *(trends_of(track, trends) if trends else []), sep="\n")


if __name__ == "__main__":
    main()
