"""Python API: run a scenario and read its results as pandas frames."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from sfl_sim.engine.news import silent
from sfl_sim.engine.trial import Settings
from sfl_sim.scenario.load import Overrides, Study, load, parse, read_overrides, training
from sfl_sim.scenario.own_code import Permission, permitted
from sfl_sim.scenario.sections import Scenario
from sfl_sim.scenario.shipped import scenario_file
from sfl_sim.scenario.vary import axis
from sfl_sim.studies.advise import Advice, Criteria, find_advice
from sfl_sim.studies.reprice import Repricing
from sfl_sim.studies.serve import ServedStudy
from sfl_sim.studies.train import TrialsFailed, run_study
from sfl_sim.studies.whatif import run_whatif

__all__ = [
    "Advice",
    "Results",
    "Scenario",
    "Served",
    "TrialsFailed",
    "WhatIf",
    "advise",
    "reprice",
    "run",
    "serve",
    "whatif",
]


def _table(name: str, about: str) -> cached_property[pd.DataFrame]:
    """Return a property that reads a table of a folder once."""

    def read(stored: Results | Served) -> pd.DataFrame:
        return pd.read_parquet(stored.folder / f"{name}.parquet")

    read.__doc__ = about
    return cached_property(read)


@dataclass(frozen=True)
class Results:
    """A stored run; its tables are read when they are asked for (columns: docs/output.md)."""

    folder: Path

    rounds = _table("rounds", "One row per variant, seed and round.")
    labels = _table("labels", "One row per variant, seed, round and label.")
    clients = _table("clients", "One row per variant, seed and client: its device, links, data and cut.")
    layers = _table("layers", "One row per variant, seed and layer of the model: what it costs.")
    ops = _table("ops", "One row per operation; large runs have millions.")

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Headline figures: one row per variant and seed."""
        return pd.json_normalize(json.loads((self.folder / "summary.json").read_text())["variants"])


@dataclass(frozen=True)
class Served:
    """A served study; its tables are read when they are asked for (columns: docs/output.md)."""

    folder: Path

    requests = _table("requests", "One row per variant, seed and request; large studies have millions.")
    fleet = _table("fleet", "One row per variant, seed and client: its device, links and share of the model.")

    @cached_property
    def summary(self) -> pd.DataFrame:
        """Times of the requests: one row per variant and seed."""
        return pd.json_normalize(json.loads((self.folder / "serving.json").read_text())["cells"])


def _axes_table(name: str, about: str) -> cached_property[pd.DataFrame]:
    """Return a property that reads a table of a what-if study once, with a column for every key that varies."""

    def read(asked: WhatIf) -> pd.DataFrame:
        frame = pd.read_parquet(asked.folder / f"{name}.parquet")
        axes = json.loads((asked.folder / "whatif.json").read_text())["axes"]
        for number, each in enumerate(axes):
            if f"axis_{number}" in frame:
                values = [value if isinstance(value, str | int | float) else str(value) for value in each["values"]]
                frame[f"axis_{number}"] = pd.Series(values)[frame[f"axis_{number}"]].to_list()
        return frame.rename(columns={f"axis_{number}": each["key"] for number, each in enumerate(axes)})

    read.__doc__ = about
    return cached_property(read)


@dataclass(frozen=True)
class WhatIf:
    """A what-if study; its tables are read when they are asked for (columns: docs/output.md).

    Where they say `axis_0`, `axis_1`, ..., frames have the values themselves, in columns named by the key that varies.
    """

    folder: Path

    points = _axes_table("points", "One row per configuration and seed: what an average round takes, and where.")
    clients = _axes_table(
        "clients", "One row per configuration, seed and client: where it spends its rounds, what it needs."
    )
    server = _axes_table("server", "The best configuration of the scenario's own system, with other servers.")
    layers = _axes_table("layers", "One row per layer of the model: what it costs.")
    overlay = _axes_table(
        "overlay", "One row per configuration and seed whose accuracy a training run tells; only with `runs`."
    )


def run(
    scenario: str | Path | Scenario | Mapping[str, Any],
    *,
    overrides: Overrides = (),
    data: Any = None,
    out: str | Path | None = None,
    jobs: int = 1,
    timing_only: bool = False,
    device: str = "auto",
    threads: int | None = None,
    resume: bool = False,
    fresh: bool = False,
    backend: str = "local",
    address: str | None = None,
    allow_code: bool = False,
) -> Results:
    """Run a scenario as the command line does, silently.

    Args:
        scenario: a YAML file, the name of a shipped scenario, a `Scenario`, or a mapping as in the YAML file, whose
            values may be Python objects: arrays and frames for lists, and your own model, method, order, ...
        overrides: `key=value` texts, or a mapping from dotted keys to values, which may be Python objects.
        data: data of your own: (x_train, y_train, x_test, y_test) as arrays or tensors, or two torch data sets.
        out: the run's folder; by default `reports/<name>`, or the next free number.
        jobs: variants and seeds to run side by side.
        timing_only: simulate time without training.
        device: auto, cpu or cuda.
        threads: intra-op threads of a run; all cores unless given.
        resume: go on with an interrupted run of the same scenario, as `--resume` does.
        fresh: run what other runs in reports/ (or beside `out`) have finished, too.
        backend: local, or ray.
        address: of a Ray cluster, auto or ray://...; None starts Ray here.
        allow_code: let code of your own run that the scenario names by its path; a function handed over may run anyway.

    Raises:
        ScenarioError: the scenario, the device or the folder cannot be used.
        TrialsFailed: variants failed; what the others gave is in the folder of its `outcome`.
    """
    threads = threads or Settings.threads
    settings = Settings(timing_only, device, jobs, threads, resume, not fresh, backend, address)
    with permitted(Permission(allow_code)):
        study = training(_study(scenario, overrides, data))
        return Results(run_study(study, Path(out) if out else None, settings, silent).folder)


def serve(
    scenario: str | Path | Scenario | Mapping[str, Any],
    *,
    overrides: Overrides = (),
    out: str | Path | None = None,
    run: str | Path | None = None,
    timing_only: bool = False,
    device: str = "auto",
    allow_code: bool = False,
) -> Served:
    """Let requests come to what a scenario trains, as the command line does, silently.

    Args:
        scenario, overrides: as of `run`.
        out: a folder for the serving; by default `reports/<name>-serving`, or the next free number.
        run: the folder of the run to serve; by default one of reports/ with its models; else they are trained.
        timing_only: train nothing, exits happen with `serving.exit_probability`.
        device: of the training: auto, cpu or cuda.
        allow_code: as for `run`.

    Raises:
        ScenarioError: the scenario, the run, the device or the folder cannot be used.
    """
    with permitted(Permission(allow_code)):
        study = ServedStudy(_study(scenario, overrides), Settings(timing_only, device, resume=True, reuse=True))
        return Served(study.run(Path(run) if run else None, Path(out) if out else None, silent).folder)


def reprice(
    run: str | Path, *, overrides: Sequence[str], out: str | Path | None = None, allow_code: bool = False
) -> Results:
    """Walk a stored run again in another world, without training, silently.

    Args:
        run: the folder of a training run.
        overrides: `key=value` texts of the world: clients.compute, .network, .power, and all of server.
        out: the folder; by default `reports/<name>-repriced`, or the next free number.
        allow_code: as for `run`, for what the run's scenario names.

    What would have to be trained there has no accuracy; manifest.json says why under `repriced`.

    Raises:
        ScenarioError: there is no run, it cannot be walked again, or a key decides what is learned.
    """
    with permitted(Permission(allow_code)):
        return Results(Repricing(Path(run), overrides).run(Path(out) if out else None, silent).folder)


def whatif(
    scenario: str | Path | Scenario | Mapping[str, Any],
    vary: Mapping[str, Sequence[Any] | str],
    *,
    overrides: Overrides = (),
    runs: Sequence[str | Path] = (),
    out: str | Path | None = None,
    jobs: int = 1,
    allow_code: bool = False,
) -> WhatIf:
    """Time the rounds of a scenario, without training, at all combinations of what varies, silently.

    Args:
        scenario, overrides: as of `run`.
        vary: the values of every key that varies; `{"model.cut": "all"}` tries every cut.
        runs: folders of training runs, whose accuracies are added to the points that they trained.
        out: a folder for the study; by default `reports/<name>-whatif`, or the next free number.
        jobs: points to walk side by side.
        allow_code: as for `run`.

    Raises:
        ScenarioError: the scenario, a key, a value, a run or the folder cannot be used.
    """
    axes = [axis(key, values) for key, values in vary.items()]
    place = Path(out) if out else None
    with permitted(Permission(allow_code)):
        study = training(_study(scenario, overrides))
        return WhatIf(run_whatif(study, axes, place, jobs, silent, [*map(Path, runs)]).folder)


def advise(
    scenario: str | Path | Scenario | Mapping[str, Any],
    *,
    overrides: Overrides = (),
    per_client: bool = False,
    memory_bytes: int | None = None,
    accuracy: float | None = None,
    runs: Sequence[str | Path] = (),
    allow_code: bool = False,
) -> Advice:
    """Choose the cuts with the shortest rounds, by the clock alone, as the command line does, silently.

    Args:
        scenario, overrides: as of `run`.
        per_client: a cut for each client instead of one for all.
        memory_bytes: maximum of a client's memory.
        accuracy: accuracy that a cut must have reached in `runs`, folders of recorded runs.
        allow_code: as for `run`.

    Raises:
        ScenarioError: the scenario or a run cannot be used, or no cut is left.
    """
    criteria = Criteria(per_client, memory_bytes, accuracy, [Path(run) for run in runs])
    with permitted(Permission(allow_code)):
        return find_advice(training(_study(scenario, overrides)), criteria, silent)


def _study(scenario: str | Path | Scenario | Mapping[str, Any], overrides: Overrides, data: Any = None) -> Study:
    layer = read_overrides(overrides)
    if data is not None:
        layer["data.factory"] = data() if callable(data) else data
    if isinstance(scenario, str | Path):
        return load(scenario_file(scenario), layer)
    return parse(scenario, overrides=layer)
