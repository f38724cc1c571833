"""Stored runs in MLflow: an experiment per scenario, a run per stored folder, below it one per variant and seed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.scores import MORE_SCORES, SCORES
from sfl_sim.report.comparison import settings_texts
from sfl_sim.report.display import plural
from sfl_sim.report.load import SUMMARY_NUMBERS, flat, load_unchanged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mlflow import MlflowClient
    from mlflow.entities import Metric
    from mlflow.entities import Run as Logged

    from sfl_sim.report.load import Run

BY_ROUND = [
    *SCORES, *MORE_SCORES, "client_accuracy", "hybrid_accuracy", "loss", "performance_gap", "bytes_up", "bytes_down",
    "simulated_s",
]  # fmt: skip
"""Metrics with the round as their step. Their times are simulated, too: MLflow's axis of relative time shows them."""
FINAL = "final/"
"""Prefix of the numbers of the summary."""
ARTIFACTS = ("report.html", "summary.json", "scenario.yaml")
STATUS = {"complete": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}
DIGEST, VARIANT, SEED, TIMELINE, WEIGHTS = (
    f"sfl_sim.{name}" for name in ("digest", "variant", "seed", "timeline_digest", "weights_digest")
)
"""Tags by which runs are found again: of the scenario and how it was computed; of what came out."""
BATCH = 1000
"""Metrics that MLflow takes at once."""


@dataclass
class Tally:
    """Count of runs that are new in MLflow, that take the place of others, and that were there already."""

    new: int = 0
    replaced: int = 0
    kept: int = 0

    def __str__(self) -> str:
        told = [f"{plural(self.new, 'run')} logged"]
        told += [f"{self.replaced} replaced, which had fewer rounds or other results"] if self.replaced else []
        told += [f"{self.kept} there already"] if self.kept else []
        return ", ".join(told)


def log_runs(folders: Sequence[Path], store: str) -> Tally:
    """Log stored runs in the MLflow store at `store`, a folder or a URI; what is there already is not logged again.

    Raises:
        ScenarioError: a folder holds no complete run, MLflow is missing, or the store cannot be used.
    """
    runs = [load_unchanged(folder) for folder in dict.fromkeys(folders)]
    client = mlflow_client(store)
    from mlflow.exceptions import MlflowException

    tally = Tally()
    try:
        for run in runs:
            _log(client, run, tally)
    except (MlflowException, OSError) as error:
        raise ScenarioError(" ".join(str(error).split()), key="--log", found=store) from error
    return tally


def mlflow_client(store: str) -> MlflowClient:
    """Open a store, a folder or a URI. Raises ScenarioError if that fails, or MLflow is missing."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a server that is down is told in seconds
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    if "://" not in store:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the only store that needs no server and no database
        store = Path(store).absolute().as_uri()
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError as error:
        raise ScenarioError("MLflow is not installed: pip install 'sfl-sim[mlflow]'", key="mlflow") from error
    try:
        return MlflowClient(tracking_uri=store)
    except (MlflowException, OSError, ValueError) as error:
        raise ScenarioError(" ".join(str(error).split()), key="--log", found=store) from error


def _log(client: MlflowClient, run: Run, tally: Tally) -> None:
    """Log what is not there yet of one stored run; what is there of its variants with other results is replaced."""
    digest = str(run.manifest.get("scenario", run.folder.absolute()))
    known = client.get_experiment_by_name(run.name)
    experiment = known.experiment_id if known else client.create_experiment(run.name)
    same = client.search_runs([experiment], f"tags.`{DIGEST}` = '{digest}'", max_results=50_000)
    logged = {(one.data.tags.get(VARIANT), one.data.tags.get(SEED)): one for one in same}

    def create(name: str, tags: dict[str, str]) -> Logged:
        return client.create_run(experiment, _created_ms(run), tags | {DIGEST: digest}, name)

    parent = logged.get((None, None)) or create(run.folder.name, {})
    for trial in run.summary.to_dict("records"):
        there = logged.get((trial["variant"], str(trial["seed"])))
        if there is None:
            tally.new += 1
        elif _digests(trial).items() <= there.data.tags.items():
            tally.kept += 1
            continue
        else:
            client.delete_run(there.info.run_id)
            tally.replaced += 1
        tags = {VARIANT: trial["variant"], SEED: str(trial["seed"]), "mlflow.parentRunId": parent.info.run_id}
        child = create(f"{trial['variant']}, seed {trial['seed']}", tags)
        _log_trial(client, run, trial, child.info.run_id)
    _log_parent(client, run, parent.info.run_id)


def _digests(trial: dict[Any, Any]) -> dict[str, str]:
    """Give the digests as tags."""
    told = {TIMELINE: trial["timeline_digest"], WEIGHTS: trial["weights_digest"]}
    return {tag: digest for tag, digest in told.items() if isinstance(digest, str)}


def _log_trial(client: MlflowClient, run: Run, trial: dict[Any, Any], run_id: str) -> None:
    """Log one variant with one seed; its digests, last, say that all is there."""
    from mlflow.entities import Param, RunTag

    settings = settings_texts(run.settings[trial["variant"]]) | {"seed": str(trial["seed"])}
    client.log_batch(run_id, params=[Param(key, text) for key, text in settings.items() if text != "null"])
    metrics = _metrics(run, trial)
    while batch := list(islice(metrics, BATCH)):
        client.log_batch(run_id, metrics=batch)
    client.log_batch(run_id, tags=[RunTag(key, text) for key, text in (_about(run) | _digests(trial)).items()])
    client.set_terminated(run_id, _status(run))


def _metrics(run: Run, trial: dict[Any, Any]) -> Iterator[Metric]:
    """Give the numbers of each round at its simulated time, and those of the summary."""
    from mlflow.entities import Metric

    ours = (run.rounds["variant"] == trial["variant"]) & (run.rounds["seed"] == trial["seed"])
    rounds = run.rounds[ours].assign(simulated_s=run.rounds["ended_s"])
    told = [({key: row[key] for key in BY_ROUND}, row["ended_s"], row["round"]) for row in rounds.to_dict("records")]
    final = {f"{FINAL}{key}": trial[key] for key in SUMMARY_NUMBERS}
    for values, at_s, step in [*told, (final, trial["simulated_s"], int(trial["rounds"]))]:
        at_ms = _created_ms(run) + round(1000 * at_s)
        yield from (Metric(key, float(value), at_ms, step) for key, value in values.items() if np.isfinite(value))


def _log_parent(client: MlflowClient, run: Run, run_id: str) -> None:
    for key, text in _about(run).items():
        client.set_tag(run_id, key, text)
    for path in (run.folder / name for name in ARTIFACTS):
        if path.is_file() and not path.is_symlink():  # a link in a run that somebody sent may lead to anything of ours
            client.log_artifact(run_id, str(path))
    client.set_terminated(run_id, _status(run))


def _about(run: Run) -> dict[str, str]:
    """Give what the manifest says of how the run was computed, as tags."""
    told = flat({key: value for key, value in run.manifest.items() if key != "scenario"})
    return {"sfl_sim.folder": str(run.folder)} | {f"sfl_sim.{key}": str(value) for key, value in told.items()}


def _status(run: Run) -> str:
    return STATUS.get(str(run.manifest.get("status")), "FINISHED")


def _created_ms(run: Run) -> int:
    created = run.manifest.get("created")
    return round(1000 * (datetime.fromisoformat(created) if created else datetime.now(UTC)).timestamp())
