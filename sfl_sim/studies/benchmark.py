"""The benchmark: methods in one world, each with what was best in pilots, of which all have as many, and its cost."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.round_tables import learned
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import Method
from sfl_sim.metrics.scores import LAST_ROUNDS, VALIDATION, score_of, way_to
from sfl_sim.report.load import BENCHMARK, BENCHMARK_BEFORE, OWN_LINKS, PILOTS_OF_BENCHMARK, TABLES, Run
from sfl_sim.report.load import load as load_run
from sfl_sim.runs.news import Notify
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.grid import points
from sfl_sim.scenario.load import Study, Variant, changed, digest, extended, training
from sfl_sim.scenario.sections import Benchmark, Scenario
from sfl_sim.store.folder import is_begun
from sfl_sim.store.reading import file_of
from sfl_sim.studies.launch import TrialsFailed
from sfl_sim.studies.reprice import Repricing, check_same_training
from sfl_sim.studies.train import run_study
from sfl_sim.studies.walk import memory_bytes

SEARCHED = ("train.lr", "train.optimizer", "train.momentum", "train.server")
"""Keys that pilots choose, besides an option of the method's own (`Method.tuned`)."""
N_PILOTS, DESIGN_SEED = 12, 66
"""Pilots of every variant, and the seed of the quasi-random design of their settings, which is the same for all."""
OPTIMISERS: dict[str, dict[str, Any]] = {
    "sgd": {"train.optimizer": "sgd"},
    "momentum": {"train.optimizer": "sgd", "train.momentum": 0.9},
    "adam": {"train.optimizer": "adam"},
}
APART = 10.0
"""Most times that the server's learning rate is the clients', or they its."""
EDGE = 1 / 8
"""Share of a range of rates, on a logarithmic scale, that is its edge."""
PILOTS, RUN = "pilots", "run"
"""Names in the benchmark's folder: pilots, and the comparison."""
REST = "splitfrozen"
"""Method whose clients are at rest."""
CENTRAL = {"method": {"name": "fedavg"}, "clients.count": 1, "clients.participation": 1, "clients.availability": None,
           "data.partition": {"kind": "iid"}}  # fmt: skip
"""What makes a variant one network that is trained with all samples at one place."""
CENTRALLY, AT_START, GUESSING = "trained centrally", "weights at the start", "guessing"
"""Names of the controls."""
HALF = 0.5
"""Share of what the first variant spends with a seed that is the budget of all variants."""
SPENT = ("rounds", "simulated_s", "bytes_up", "bytes_down", "joule", "performance_gap", "backward_transfer",
         "perplexity", "server_model_bytes")  # fmt: skip
"""Columns that the table takes from summary.json."""
TRAITS = ("is_split", "sends_labels", "gets_gradients", "keeps_graphs", "uploads_model")
"""Traits of methods in the table."""
Ranges = Mapping[Literal["sgd", "momentum", "adam"], Sequence[float]]
ProgressContext = Callable[[], AbstractContextManager[Notify]]


def run_benchmark(
    study: Study, more: Sequence[str], out: Path | None, settings: Settings, progress: ProgressContext
) -> Path:
    """Compare the variants of `study`, and `more` methods, in a folder (default: `reports/<name>-benchmark`).

    Every variant is trained with the settings of its pilots and their seed; then with those of them at which it scored
    highest on validation samples, with the scenario's own seeds. What is finished there is kept, so that the same
    command goes on after an interruption, and a further method costs its own runs alone. An earlier table with other
    rows stays beside the new one. Gives the folder.

    Raises ScenarioError for bad input, or if a variant diverges in all pilots.
    """
    study = with_controls(with_methods(training(study), more))
    folder = out or Path("reports", f"{study.name}-benchmark")
    settings = replace(settings, reuse=True)
    check_links(study)
    check_pilots(study)
    tried = [list(settings_of(variant, benchmark_of(study).rates)) for variant in study.points]
    told = with_settings(study, tried, {"name": f"{study.name}-{PILOTS}", "seed": benchmark_of(study).pilot_seed,
                                        "repeats": 1, "report.leakage": None})  # fmt: skip
    scored = pilots_of(study, told, _run(told, folder, PILOTS, settings, progress))
    scored.to_csv(folder / PILOTS_OF_BENCHMARK, index=False, float_format="%.6g")
    final = with_settings(study, best_of(scored, tried))
    run = _run(final, folder, RUN, settings, progress)
    tables = [table_of(study, final, scored, run, run, OWN_LINKS)]
    for name, layer in benchmark_of(study).links.items():
        with progress() as notify:
            repriced = Repricing(run, layer).run(folder / f"{run.name}-{name}", notify).ended()
        tables.append(table_of(study, final, scored, run, repriced, name))
    text = pd.concat(tables, ignore_index=True).to_csv(index=False, float_format="%.6g")
    if (path := folder / BENCHMARK).exists() and path.read_text(encoding="utf-8") != text:
        path.replace(folder / BENCHMARK_BEFORE)
    path.write_text(text, encoding="utf-8")
    return folder


def with_methods(study: Study, more: Sequence[str]) -> Study:
    """Return the study with further methods, with default options, in its grid. Raises ScenarioError."""
    if not more:
        return study
    return extended(study, {"grid": [*_parts(study), *({"method": {"name": name}} for name in more)]})


def with_controls(study: Study) -> Study:
    """Return the study with clients at rest, unless they are in it, and a centrally trained network, in its grid."""
    has_rest = any(variant.scenario.method.name == REST for variant in study.variants)
    more = [] if has_rest else [{"method": {"name": REST}}]
    return extended(study, {"grid": [*_parts(study), *more, CENTRAL]})


def _parts(study: Study) -> list[dict[str, Any]]:
    """The grids of a study, of which each has the points one after the other; one of its method if it has none."""
    own = study.base.grid or {"method": study.base.method.model_dump()}
    return [own] if isinstance(own, dict) else list(own)


def benchmark_of(study: Study) -> Benchmark:
    """Return how the study's variants are compared: as its scenario says, or by defaults."""
    return study.base.benchmark or Benchmark()


def check_links(study: Study) -> None:
    """Raise ScenarioError if other links have keys or values that cannot be used, or that decide what is learned."""
    for name, layer in benchmark_of(study).links.items():
        lines = {key: study.places.of(f"benchmark.links.{name}.{key}") for key in layer}
        for variant in study.points:
            places = variant.places.over(lines)
            with places.locating():
                check_same_training(variant, changed(variant.scenario, layer, places))


def check_pilots(study: Study) -> None:
    """Raise ScenarioError if there is nothing to choose on, or the scenario sets what pilots choose or their seed."""
    for key in SEARCHED:
        given = [f"grid.{path}" for point in points(study.base.grid) for path in point] + list(study.places.keys)
        named = next((path for path in given if f"{path.removeprefix('grid.')}.".startswith(f"{key}.")), None)
        if named:
            raise study.located(ScenarioError("is chosen by the benchmark in pilots", key=named))
    if any(variant.scenario.data.validation is None for variant in study.variants):
        problem = "is missing: settings are chosen on samples that are set aside, such as {share: 0.1}"
        raise study.located(ScenarioError(problem, key="data.validation"))
    seeds = {variant.scenario.seed for variant in study.variants}
    if (pilot_seed := benchmark_of(study).pilot_seed) in seeds:
        problem = "must not be among the seeds of the comparison, on which nothing may be tuned"
        raise study.located(ScenarioError(problem, key="benchmark.pilot_seed", found=pilot_seed))


def settings_of(variant: Variant, rates: Ranges) -> Iterator[dict[str, Any]]:
    """Generate the settings of a variant's pilots: points of a Halton sequence in the same space for all variants.

    Its axes are the optimiser, the clients' rate, how many times the server's is as high, and an option of the method's
    own. A method without a server that trains, or whose nodes have one rate, has no rate of the server; and one whose
    idea does nothing with an optimiser is not tried with it.
    """
    from scipy.stats import qmc  # takes half a second to import

    usable, has_server, method = [], True, None
    for name in rates:
        layer = {**OPTIMISERS[name], "train.lr": 0.1}
        try:
            method = _method(variant, {**layer, "train.server.lr": 0.1})
        except ScenarioError as error:
            if error.key != "train.server":
                raise
            has_server, method = False, _method(variant, layer)
        usable += [] if method.idea_off else [name]
    assert method is not None
    usable = usable or list(rates)
    key, values = method.tuned or ("", ())
    is_free = method.tuned is not None and key not in variant.scenario.method.options
    for which, rate, apart, option in qmc.Halton(4, seed=DESIGN_SEED).random(N_PILOTS):
        name = usable[int(which * len(usable))]
        low, high = sorted(rates[name])
        lr = low * (high / low) ** rate
        found = {**OPTIMISERS[name], "train.lr": _rounded(lr)}
        if has_server:
            found["train.server.lr"] = _rounded(lr * APART ** (2 * apart - 1))
        if is_free:
            found[f"method.{key}"] = values[int(option * len(values))]
        yield found


def _method(variant: Variant, layer: Mapping[str, Any]) -> Method:
    return Experiment(changed(variant.scenario, layer, variant.places), None).method


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")


def with_settings(
    study: Study, settings: Sequence[Sequence[Mapping[str, Any]]], layer: Mapping[str, Any] | None = None
) -> Study:
    """Return the study with a variant for each setting of each point of the grid; `layer` sets more keys."""
    grid = []
    for point, own in zip(points(study.base.grid), settings, strict=True):
        given = {key: choice.value for key, choice in point.items()}
        for each in own:
            layers = {**given, **each}
            if "method" in given:  # a whole section, which its own option joins
                options = [key for key in each if key.startswith("method.")]
                layers["method"] = {**given["method"], **{key.partition(".")[2]: layers.pop(key) for key in options}}
            grid.append({key: [value] for key, value in layers.items()})
    return extended(study, {"grid": grid, **(layer or {})})


def pilots_of(study: Study, told: Study, folder: Path) -> pd.DataFrame:
    """Tabulate the pilots in `folder`: settings, scores on validation samples, the chosen one, and edges they are at.

    Of equally good ones the first is chosen. Raises ScenarioError if a variant has diverged in all of its pilots.
    """
    run, rates = load_run(folder), benchmark_of(study).rates
    lost = _diverged(run)
    scores = run.summary.set_index(["variant", "seed"])[VALIDATION].drop(list(lost), errors="ignore").to_dict()
    rows: list[dict[str, Any]] = []
    for n, named in enumerate(study.points):
        pilots = told.points[n * N_PILOTS :][:N_PILOTS]
        tried = [_settings(pilot.scenario, named.scenario) for pilot in pilots]
        for number, (pilot, about) in enumerate(zip(pilots, tried, strict=True), start=1):
            edges = _edges(about, rates, [each["option"] for each in tried])
            option = ", ".join(f"{key}={value}" for key, value in about["option"].items())
            score = scores.get((pilot.name, pilot.scenario.seed), math.nan)
            name, seed = _name(study, named), pilot.scenario.seed
            row = {"track": study.name, "variant": name, "pilot": number, "seed": seed, **about, "option": option}
            rows.append(row | {VALIDATION: score, "is_chosen": False, "at_edge": edges})
    found = pd.DataFrame(rows)
    best = found.groupby("variant", sort=False)[VALIDATION].max()
    if not best.notna().all():
        problem = "needs smaller ones: a variant diverged in all pilots"
        raise ScenarioError(problem, key="benchmark.rates", found=best.index[best.isna()][0])
    found.loc[found.groupby("variant", sort=False)[VALIDATION].idxmax(), "is_chosen"] = True
    return found


def best_of(scored: pd.DataFrame, tried: Sequence[Sequence[Mapping[str, Any]]]) -> list[Sequence[Mapping[str, Any]]]:
    """Return the settings that the pilots of each variant have chosen."""
    chosen = scored.loc[scored["is_chosen"], "pilot"]
    return [[own[number - 1]] for own, number in zip(tried, chosen, strict=True)]


def _settings(scenario: Scenario, named: Scenario) -> dict[str, Any]:
    """Tell what a pilot sets: `option` holds the method's own that it sets beyond those of the grid."""
    train = scenario.train
    own = {key: value for key, value in scenario.method.options.items() if key not in named.method.options}
    optimizer = "momentum" if train.optimizer == "sgd" and train.momentum else train.optimizer
    server_lr = train.server.lr if train.server else math.nan
    return {"optimizer": optimizer, "lr": train.lr, "server_lr": server_lr, "option": own}


def _edges(about: Mapping[str, Any], rates: Ranges, options: Sequence[Mapping[str, Any]]) -> str:
    """Tell at which edges of what was searched settings lie; `options` of the method's own were tried."""
    low, high = sorted(rates[about["optimizer"]])
    lr, found = about["lr"], []
    ends = {"rate": (lr, low, high), "server's": (about["server_lr"], lr / APART, lr * APART)}
    for name, (rate, least, most) in ends.items():
        width = (most / least) ** EDGE
        found += [f"lowest {name}"] if rate < least * width else [f"highest {name}"] if rate > most / width else []
    for key, value in about["option"].items():
        tried = {each[key] for each in options if isinstance(each[key], int | float)}  # words have no edges
        if len(tried) > 1:
            found += [f"{end} {key}" for end, most in (("lowest", min), ("highest", max)) if value == most(tried)]
    return ", ".join(found)


def _name(study: Study, variant: Variant) -> str:
    """Name a variant of the comparison; the last one is that of the centrally trained network."""
    return CENTRALLY if variant.name == study.variants[-1].name else variant.name


def untrained(scenario: Scenario, score: str) -> dict[str, float]:
    """Give the scores of the weights at the start, and of the one answer that is right most often, if there is one."""
    experiment = Experiment(scenario, torch.device("cpu"))
    evaluation = experiment.evaluator.of_model(experiment.method.model())
    found = {AT_START: float(learned(evaluation, [], experiment.counts)[score])}
    if score == "accuracy":
        found[GUESSING] = experiment.evaluator.guessing()
    return found


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


def table_of(study: Study, final: Study, scored: pd.DataFrame, trained: Path, folder: Path, links: str) -> pd.DataFrame:
    """Tabulate what each variant with each seed has learned, and what it has spent in the run in `folder`.

    Seeds that have diverged have no row. Scores are those of the run in `trained`, also where the other one is the same
    training on links on which it might have learned otherwise; such variants do not `hold`. Controls are told with the
    scenario's own links, and have a score alone.

    The target with a seed lies `target_share` of the way from the floor to the ceiling: from the best that guessing,
    the weights at the start or clients at rest reach in any round, to the best of the centrally trained network. There
    is none if the ceiling is no higher, or diverged.
    """
    run, n_seeds = load_run(folder), study.base.repeats
    known = load_run(trained)
    scores = known.rounds.set_index(["variant", "seed", "round"])
    lost = _diverged(known)
    summary = {
        trial: row for row in run.summary.to_dict("records") if (trial := (row["variant"], row["seed"])) not in lost
    }
    score, timed = score_of(scores), run.rounds.set_index(["variant", "seed", "round"])
    rounds = timed.assign(**{score: scores[score]}).reset_index()
    of_each = dict(list(rounds.groupby(["variant", "seed"])))
    about = [_about(variant.scenario) for variant in final.points]
    first, central = final.points[0], final.points[-1]
    rest = next(variant for variant in final.points if variant.scenario.method.name == REST)
    without = {each.scenario.seed: untrained(each.scenario, score) for each in final.variants[:n_seeds]}
    leaks, chosen = _leaks(run), scored[scored["is_chosen"]].set_index("variant")
    rows: list[dict[str, Any]] = []
    for number, (named, variant) in enumerate(zip(study.variants, final.variants, strict=True)):
        seed, name = variant.scenario.seed, _name(study, named)
        own = (variant.name, seed)
        if own not in summary:
            continue
        row = {"track": study.name, "variant": name, "seed": seed, "links": links, "control": "", "superseded": "",
               **chosen.loc[name, ["optimizer", "lr", "server_lr", "option", "at_edge"]]}  # fmt: skip
        at_rest, ceiling = (
            float(of_each[each.name, seed][score].max()) if (each.name, seed) in summary else -math.inf
            for each in (rest, central)
        )
        floor = max(*without[seed].values(), at_rest)
        target = floor + benchmark_of(study).target_share * (ceiling - floor) if ceiling > floor else None
        budget = of_each[first.name, seed] if (first.name, seed) in summary else None  # diverged: nobody has one
        reached = _scores(of_each[own], target, budget)
        if name == CENTRALLY:
            rows += [row | {"control": name, "score": reached["score"]}] if links == OWN_LINKS else []
            continue
        rows.append(
            row | {"holds": variant.name not in run.doubtful,
                   **{key: summary[own][key] for key in SPENT},
                   **reached, "ssim": leaks.get(own, math.nan), **about[number // n_seeds]}
        )  # fmt: skip
    if links == OWN_LINKS:
        blank = {"track": study.name, "links": links, "superseded": ""}
        rows += [blank | {"variant": name, "control": name, "seed": seed, "score": number}
                 for seed, own in without.items() for name, number in own.items()]  # fmt: skip
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
        "score_in_half_time": None,
        "score_in_half_bytes": None,
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
