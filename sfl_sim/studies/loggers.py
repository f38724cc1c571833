"""Loggers: the numbers of every round for TensorBoard, Weights & Biases, MLflow or a function, live or of stored runs.

A logger of one's own is a `Log`; those below are context managers that yield one.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from sfl_sim.build.registry import named
from sfl_sim.errors import ScenarioError, in_short, own_place
from sfl_sim.report.comparison import settings_texts
from sfl_sim.report.load import flat, load_unchanged
from sfl_sim.runs.news import Ended, News, Notify, Reused, Warned
from sfl_sim.scenario.load import Study, training
from sfl_sim.store.files import as_file_names

Log = Callable[[str, int, Mapping[str, float]], None]
"""Takes a trial's name (its variant and seed), the number of a round, and the round's numbers by column."""
KEY = "--log"


class LoggedStudy(NamedTuple):
    """Name of a study, and settings as text by key of each of its trials, by the trial's name."""

    name: str
    settings: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, study: Study) -> LoggedStudy:
        """Return those of a study that is about to run."""
        trained = training(study)
        settings = {
            trained.title(variant): settings_texts(flat(variant.scenario.model_dump(mode="json")))
            for variant in trained.variants
        }
        return cls(study.name, settings)


@contextmanager
def _closed_by(close: Callable[[str], None]) -> Iterator[None]:
    """Close a logger at the end, with the status in MLflow's words: FINISHED, FAILED, or KILLED after an interrupt."""
    try:
        yield
    except BaseException as error:
        with suppress(Exception):  # the store may be what has failed
            close("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED")
        raise
    close("FINISHED")


@contextmanager
def tensorboard(folder: str, study: LoggedStudy) -> Iterator[Log]:
    """Write a folder of events for each trial below `folder`, for `tensorboard --logdir`."""
    from torch.utils.tensorboard import SummaryWriter

    folders = dict(zip(study.settings, as_file_names(study.settings), strict=True))
    writers: dict[str, Any] = {}

    def log(name: str, round: int, numbers: Mapping[str, float]) -> None:
        if name not in writers:
            writers[name] = SummaryWriter(str(Path(folder, folders[name])))
        for key, number in numbers.items():
            writers[name].add_scalar(key, number, round)
        writers[name].flush()

    def close(_: str) -> None:
        for writer in writers.values():
            writer.close()

    with _closed_by(close):
        yield log


@contextmanager
def wandb(project: str, study: LoggedStudy) -> Iterator[Log]:
    """Log a run for each trial in a project of Weights & Biases; WANDB_MODE=offline keeps them here."""
    import wandb

    runs: dict[str, Any] = {}

    def log(name: str, round: int, numbers: Mapping[str, float]) -> None:
        if name not in runs:
            config = dict(study.settings[name])
            runs[name] = wandb.init(project=project, group=study.name, name=name, config=config, reinit="create_new")
        runs[name].log(dict(numbers), step=round)

    def close(status: str) -> None:
        for run in runs.values():
            run.finish(exit_code=int(status != "FINISHED"))

    with _closed_by(close):
        yield log


@contextmanager
def mlflow(store: str, study: LoggedStudy) -> Iterator[Log]:
    """Log an experiment of the study's name in an MLflow store, a folder or a URI.

    It gets a run, and below that one for each trial: settings as params, and numbers at their simulated time.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # a server that is down is told in seconds
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    if "://" not in store:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the only store that needs no server and no database
        store = Path(store).absolute().as_uri()
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client, began_ms = MlflowClient(tracking_uri=store), round(1000 * time.time())
    known = client.get_experiment_by_name(study.name)
    experiment = known.experiment_id if known else client.create_experiment(study.name)
    parent = client.create_run(experiment, began_ms, run_name=study.name).info.run_id
    runs: dict[str, str] = {}

    def log(name: str, number: int, numbers: Mapping[str, float]) -> None:
        if name not in runs:
            runs[name] = client.create_run(experiment, began_ms, {"mlflow.parentRunId": parent}, name).info.run_id
            params = [Param(key, text) for key, text in study.settings[name].items() if text != "null"]
            client.log_batch(runs[name], params=params)
        at_ms = began_ms + round(1000 * numbers["ended_s"])
        client.log_batch(runs[name], [Metric(key, value, at_ms, number) for key, value in numbers.items()])

    def close(status: str) -> None:
        for run in (parent, *runs.values()):
            client.set_terminated(run, status)

    with _closed_by(close):
        yield log


LOGGERS: dict[str, Callable[[str, LoggedStudy], AbstractContextManager[Log]]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
}
"""Loggers by name, opened with the place to write to and the study."""


@contextmanager
def logging(study: Study, to: Sequence[str | Log], notify: Notify) -> Iterator[Notify]:
    """Yield a `Notify` that tells the rounds of `study` to loggers, and all news to `notify`.

    A logger that fails warns, and is told nothing any more; the study goes on.

    Args:
        to: functions, or texts: `NAME=PLACE` with a name in `LOGGERS`, or `package.module:function`.

    Raises ScenarioError if there is no such logger, or its package is missing.
    """
    with ExitStack() as stack:
        about = LoggedStudy.of(study) if to else LoggedStudy(study.name, {})
        names = list(about.settings)
        logs = {str(logger): stack.enter_context(_opened(logger, about)) for logger in to}

        def both(news: News) -> None:
            notify(news)
            if isinstance(news, Reused) and logs:
                notify(Warned(news.trial, "is reused, so that loggers are told nothing; --fresh trains it again"))
            if isinstance(news, Ended) and news.is_new:
                for name, log in list(logs.items()):
                    try:
                        log(names[news.trial], news.round.row["round"], _numbers(news.round.row))
                    except Exception as error:  # of a package, a server, or a user's function
                        del logs[name]
                        notify(Warned(None, f"{name} fails with {in_short(error)}{own_place(error)}: it logs no more"))

        yield both


def log_runs(folders: Sequence[Path], logger: str) -> int:
    """Tell a logger all rounds of stored runs, as `logging` does while they run; return the number of trials.

    Raises ScenarioError if a folder holds no complete run, or the logger cannot be used.
    """
    n_trials = 0
    for run in [load_unchanged(folder) for folder in dict.fromkeys(folders)]:
        several = run.rounds["seed"].nunique() > 1
        trials = {
            f"{variant} (seed {seed})" if several else str(variant): (str(variant), rounds)
            for (variant, seed), rounds in run.rounds.groupby(["variant", "seed"], sort=False)
        }
        settings = {name: settings_texts(run.settings[variant]) for name, (variant, _) in trials.items()}
        with _opened(logger, LoggedStudy(run.name, settings)) as log:
            for name, (_, rounds) in trials.items():
                for row in rounds.to_dict("records"):
                    try:
                        log(name, row["round"], _numbers(row))
                    except Exception as error:
                        problem = f"fails with {in_short(error)}{own_place(error)}"
                        raise ScenarioError(problem, key=KEY, found=logger) from error
        n_trials += len(trials)
    return n_trials


def _numbers(row: Mapping[Any, Any]) -> dict[str, float]:
    """Return what is a finite number in the row of a round, without the round's own."""
    numbers = {key: float(value) for key, value in row.items() if isinstance(value, int | float) and key != "round"}
    return {key: number for key, number in numbers.items() if math.isfinite(number)}


@contextmanager
def _opened(logger: str | Log, study: LoggedStudy) -> Iterator[Log]:
    """Open a logger. Raises ScenarioError if there is none, its package is missing, or its store cannot be used."""
    if not isinstance(logger, str):
        yield logger
        return
    name, _, place = logger.partition("=")
    if name not in LOGGERS and ":" in logger:
        yield named(logger, {}, KEY)
        return
    if name not in LOGGERS or not place:
        raise ScenarioError("is no logger", key=KEY, found=logger, allowed=[f"{known}=PLACE" for known in LOGGERS])
    with ExitStack() as stack:
        try:
            log = stack.enter_context(LOGGERS[name](place, study))
        except ModuleNotFoundError as error:
            raise ScenarioError(f"needs {error.name}: pip install 'sfl-sim[loggers]'", key=KEY, found=logger) from error
        except Exception as error:  # of a store, or a server
            raise ScenarioError(in_short(error), key=KEY, found=logger) from error
        yield log
