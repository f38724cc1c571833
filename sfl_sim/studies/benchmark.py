"""The benchmark: methods in one world, each with the learning rate that was best in pilots, and what it cost them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.scores import LAST_ROUNDS, VALIDATION, score_of, way_to
from sfl_sim.report.load import BENCHMARK, OWN_LINKS, TABLES, Run
from sfl_sim.report.load import load as load_run
from sfl_sim.runs.news import Notify
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.grid import points
from sfl_sim.scenario.load import Study, Variant, changed, digest, extended, training
from sfl_sim.scenario.sections import Benchmark, Scenario
from sfl_sim.store import is_begun
from sfl_sim.store.reading import file_of
from sfl_sim.studies.launch import TrialsFailed
from sfl_sim.studies.reprice import Repricing, check_same_training
from sfl_sim.studies.train import run_study
from sfl_sim.studies.walk import memory_bytes

RATE = "train.lr"
RATES, RUN = "rates", "run"
"""Names in the benchmark's folder: pilots, and the comparison."""
HALF = 0.5
"""Share of what the first variant spends with a seed that is the budget of all variants."""
SPENT = ("rounds", "simulated_s", "bytes_up", "bytes_down", "joule", "performance_gap", "backward_transfer",
         "perplexity", "server_model_bytes")  # fmt: skip
"""Columns that the table takes from summary.json."""
TRAITS = ("is_split", "sends_labels", "gets_gradients", "keeps_graphs", "uploads_model")
"""Traits of methods in the table."""
ProgressContext = Callable[[], AbstractContextManager[Notify]]


def run_benchmark(
    study: Study, more: Sequence[str], out: Path | None, settings: Settings, progress: ProgressContext
) -> Path:
    """Compare the variants of `study`, and `more` methods, in a folder (default: `reports/<name>-benchmark`).

    Every variant is trained at all rates with the pilots' seeds; then with the best of them, at which its median score
    was highest, with the scenario's own seeds. What is finished there is kept, so that the same command goes on after
    an interruption, and a further method costs its own runs alone. Gives the folder.

    Raises ScenarioError for bad input, or if a variant diverges at all rates.
    """
    study = with_methods(training(study), more)
    folder = out or Path("reports", f"{study.name}-benchmark")
    settings = replace(settings, reuse=True)
    check_links(study)
    tried = pilots(study)
    final = at_rates(study, best_rates(study, tried, _run(tried, folder, RATES, settings, progress)))
    run = _run(final, folder, RUN, settings, progress)
    tables = [table_of(study, final, run, run, OWN_LINKS)]
    for name, layer in benchmark_of(study).links.items():
        with progress() as notify:
            repriced = Repricing(run, layer).run(folder / f"{run.name}-{name}", notify).ended()
        tables.append(table_of(study, final, run, repriced, name))
    pd.concat(tables, ignore_index=True).to_csv(folder / BENCHMARK, index=False, float_format="%.6g")
    return folder


def with_methods(study: Study, more: Sequence[str]) -> Study:
    """Return the study with further methods, with default options, in its grid. Raises ScenarioError."""
    if not more:
        return study
    own = study.base.grid
    parts = [own or {"method": study.base.method.model_dump()}] if isinstance(own, dict) else own
    return extended(study, {"grid": [*parts, *({"method": {"name": name}} for name in more)]})


def benchmark_of(study: Study) -> Benchmark:
    """Return how the study's variants are compared: as its scenario says, or by defaults."""
    return study.base.benchmark or Benchmark()


def check_links(study: Study) -> None:
    """Raise ScenarioError if other links have keys or values that cannot be used, or that decide what is learned."""
    for name, layer in benchmark_of(study).links.items():
        lines = {key: study.places.of(f"benchmark.links.{name}.{key}") for key in layer}
        for variant in study.variants[:: study.base.repeats]:
            places = variant.places.over(lines)
            with places.locating():
                check_same_training(variant, changed(variant.scenario, layer, places))


def pilots(study: Study) -> Study:
    """Return the study of all variants at all rates, with the pilots' seeds.

    Raises ScenarioError if the scenario sets a rate itself, or if the comparison has a pilot's seed.
    """
    own, benchmark = study.base.grid, benchmark_of(study)
    in_grid = any(RATE in point for point in points(own))
    if in_grid or RATE in study.places.keys:
        key = f"grid.{RATE}" if in_grid else RATE
        raise study.located(ScenarioError("is chosen by the benchmark from benchmark.rates", key=key))
    seeds = {variant.scenario.seed for variant in study.variants}
    if benchmark.pilot_seed in seeds:
        problem = "must not be among the seeds of the comparison, on which nothing may be tuned"
        raise study.located(ScenarioError(problem, key="benchmark.pilot_seed", found=benchmark.pilot_seed))
    grid = [{**part, RATE: benchmark.rates} for part in ([own] if isinstance(own, dict) else own or [{}])]
    return extended(study, {"name": f"{study.name}-{RATES}", "seed": benchmark.pilot_seed,
                            "repeats": 1, "grid": grid, "report.leakage": None})  # fmt: skip


def best_rates(study: Study, tried: Study, folder: Path) -> list[float]:
    """Return for each point of the study's grid the rate with the best median score among the pilots in `folder`: on
    validation samples (`data.validation`), or else on the test set.

    Of equally good rates it is the smallest; pilots that diverged do not count. Raises ScenarioError if a variant has
    diverged at all of them.
    """
    run, best = load_run(folder), []
    lost = _diverged(run)
    whole = run.summary[[trial not in lost for trial in zip(run.summary["variant"], run.summary["seed"], strict=True)]]
    chosen_by = VALIDATION if whole[VALIDATION].notna().any() else score_of(run.rounds)
    middle = whole.groupby("variant")[chosen_by].median().dropna().to_dict()
    of_points = study.variants[:: study.base.repeats]
    rates = benchmark_of(study).rates
    of_rates = batched(tried.variants[:: tried.base.repeats], len(rates))
    for variant, own in zip(of_points, of_rates, strict=True):  # rates vary fastest
        found = [(-middle[each.name], rate) for each, rate in zip(own, rates, strict=True) if each.name in middle]
        if not found:
            raise ScenarioError(
                "needs a smaller one: a variant diverged at all", key="benchmark.rates", found=variant.name
            )
        best.append(min(found)[1])
    return best


def batched(items: Sequence[Variant], n: int) -> Iterator[Sequence[Variant]]:
    """Cut a sequence into pieces of `n`."""
    return (items[start : start + n] for start in range(0, len(items), n))


def at_rates(study: Study, rates: Sequence[float]) -> Study:
    """Return the study whose variants have these learning rates."""
    grid = [
        {**{key: [choice.value] for key, choice in point.items()}, RATE: rate}
        for point, rate in zip(points(study.base.grid), rates, strict=True)
    ]
    return extended(study, {"grid": grid})


def _run(study: Study, folder: Path, name: str, settings: Settings, progress: ProgressContext) -> Path:
    """Run a study in a folder of its own; trials that diverge are left out. Gives the folder.

    Another study there, such as one with fewer methods, keeps its folder, from which finished trials are taken.
    """
    path = folder / f"{name}-{digest(study)[:8]}"
    settings = replace(settings, resume=is_begun(path))
    try:
        with progress() as notify:
            outcome = run_study(study, path, settings, notify)
    except TrialsFailed as error:
        error.again = "the same command"
        if error.outcome is None or not all(failure.diverged for failure in error.failures):
            raise
        outcome = error.outcome
    return outcome.ended()


def table_of(study: Study, final: Study, trained: Path, folder: Path, links: str) -> pd.DataFrame:
    """Tabulate what each variant with each seed has learned, and what it has spent in the run in `folder`.

    Seeds that have diverged have no row. Scores are those of the run in `trained`, also where the other one is the same
    training on links on which it might have learned otherwise; such variants do not `hold`.
    """
    run, n_seeds = load_run(folder), study.base.repeats
    learned = load_run(trained)
    scores = learned.rounds.set_index(["variant", "seed", "round"])
    about = [_about(variant.scenario) for variant in final.variants[::n_seeds]]
    lost = _diverged(learned)
    summary = {
        trial: row for row in run.summary.to_dict("records") if (trial := (row["variant"], row["seed"])) not in lost
    }
    score, known = score_of(scores), run.rounds.set_index(["variant", "seed", "round"])
    rounds = known.assign(**{score: scores[score]}).reset_index()
    of_each = dict(list(rounds.groupby(["variant", "seed"])))
    leaks = _leaks(run)
    rows: list[dict[str, Any]] = []
    for number, (named, variant) in enumerate(zip(study.variants, final.variants, strict=True)):
        seed = variant.scenario.seed
        own, reference = (variant.name, seed), (final.variants[0].name, seed)
        if own not in summary:
            continue
        budgets, target = of_each.get(reference), None
        if budgets is not None:
            target = benchmark_of(study).target_share * float(budgets[score].max())
        rows.append(
            {"track": study.name, "variant": named.name, "seed": seed, "is_own": ":" in variant.scenario.method.name,
             "links": links, "holds": variant.name not in run.doubtful, "lr": variant.scenario.train.lr,
             "lr_chosen_on": "validation samples" if variant.scenario.data.validation else "test set",
             **{key: summary[own][key] for key in SPENT},
             **_scores(of_each[own], target, budgets), "ssim": leaks.get(own, math.nan),
             **about[number // n_seeds]}
        )  # fmt: skip
    return pd.DataFrame(rows)


def _diverged(run: Run) -> set[tuple[str, int]]:
    """Give the trials, by variant and seed, that have ended at a loss that was no number."""
    return {(one["variant"], one["seed"]) for one in run.manifest["failed"]}


def _scores(rounds: pd.DataFrame, target: float | None, reference: pd.DataFrame | None) -> dict[str, float | None]:
    """Tell what was reached: in the end, on the way to the target, and within half of what the reference spends."""
    joule = rounds["client_joule"] * rounds["participants"]
    moved = rounds["bytes_up"] + rounds["bytes_down"]
    score = rounds[score_of(rounds)]
    reached = way_to(target, rounds)
    found: dict[str, float | None] = {
        "score": float(score.tail(LAST_ROUNDS).median()),
        "target": target,
        "rounds_to_target": reached["rounds_to_accuracy"],
        "seconds_to_target": reached["time_to_accuracy_s"],
        "bytes_to_target": reached["bytes_to_accuracy"],
        "joule_to_target": None,
    }
    if found["rounds_to_target"] is not None:
        found["joule_to_target"] = float(joule[rounds["round"] <= found["rounds_to_target"]].sum())
    if reference is not None:
        half_s = HALF * reference["ended_s"].iloc[-1]
        half_bytes = HALF * (reference["bytes_up"] + reference["bytes_down"]).sum()
        found["score_in_half_time"] = float(score[rounds["ended_s"] <= half_s].max())
        found["score_in_half_bytes"] = float(score[moved.cumsum() <= half_bytes].max())
    return found


def _leaks(run: Run) -> dict[tuple[str, int], float]:
    """Give the similarity (SSIM) of what a server reconstructs from activations, by variant and seed, if measured."""
    if file_of(run.folder, TABLES["leakage"]) is None:
        return {}
    rows = run.rows("leakage").query("client == -1 and cut > 0 and attack == 'inversion' and metric == 'ssim'")
    return {(row["variant"], row["seed"]): row["value"] for row in rows.to_dict("records")}


def _about(scenario: Scenario) -> dict[str, Any]:
    """Tell what a method does, and the bytes that its largest client needs to train."""
    method = Experiment(scenario, device=None).method
    network = method.task.network
    cuts = set(method.cuts) or {len(network)}
    needed = max(memory_bytes(scenario, network, cut) for cut in cuts)
    return {"client_memory_bytes": needed, **{trait: bool(getattr(method, trait)) for trait in TRAITS}}
