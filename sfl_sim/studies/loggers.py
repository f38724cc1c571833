"""Loggers: the numbers of every round, told while a study runs to TensorBoard, Weights & Biases, MLflow or a function.

A logger of one's own is a `Log`; one that opens and closes something is a context manager that yields one, as those
below do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sfl_sim.build.registry import named
from sfl_sim.errors import ScenarioError, in_short, own_place
from sfl_sim.report.mlflow_log import mlflow_client
from sfl_sim.runs.news import Ended, News, Notify, Planned, Reused, Warned

Log = Callable[[str, int, Mapping[str, float]], None]
"""Takes a trial's name (its variant and seed), the number of a round, and the round's numbers by column."""
KEY = "--log"


@contextmanager
def tensorboard(place: str) -> Iterator[Log]:
    """Write a folder of events for each trial below `place`, for `tensorboard --logdir`."""
    from torch.utils.tensorboard import SummaryWriter

    writers: dict[str, Any] = {}

    def log(name: str, round: int, numbers: Mapping[str, float]) -> None:
        if name not in writers:
            writers[name] = SummaryWriter(str(Path(place) / re.sub(r"[^\w=.,-]+", "_", name)))
        for key, number in numbers.items():
            writers[name].add_scalar(key, number, round)
        writers[name].flush()

    yield log
    for writer in writers.values():
        writer.close()


@contextmanager
def wandb(place: str) -> Iterator[Log]:
    """Log a run for each trial in the project `place` of Weights & Biases; WANDB_MODE=offline keeps them here."""
    import wandb

    runs: dict[str, Any] = {}

    def log(name: str, round: int, numbers: Mapping[str, float]) -> None:
        if name not in runs:
            runs[name] = wandb.init(project=place, name=name, reinit="create_new")
        runs[name].log(dict(numbers), step=round)

    yield log
    for run in runs.values():
        run.finish()


@contextmanager
def mlflow(place: str) -> Iterator[Log]:
    """Log a run for each trial in the MLflow store `place`, a folder or a URI; `report --log` logs finished ones."""
    client = mlflow_client(place)
    known = client.get_experiment_by_name("sfl-sim")
    experiment = known.experiment_id if known else client.create_experiment("sfl-sim")
    runs: dict[str, str] = {}

    def log(name: str, round: int, numbers: Mapping[str, float]) -> None:
        if name not in runs:
            runs[name] = client.create_run(experiment, run_name=name).info.run_id
        for key, number in numbers.items():
            client.log_metric(runs[name], key, number, step=round)

    yield log
    for run in runs.values():
        client.set_terminated(run)


LOGGERS: dict[str, Callable[[str], AbstractContextManager[Log]]] = {
    "tensorboard": tensorboard,
    "wandb": wandb,
    "mlflow": mlflow,
}
"""Loggers by name, each opened with its place."""


@contextmanager
def logging(to: Sequence[str | Log], notify: Notify) -> Iterator[Notify]:
    """Yield a `Notify` that tells the rounds of a study to loggers, and all news to `notify`.

    A logger that fails warns, and is told nothing any more; the study goes on.

    Args:
        to: functions, or texts: `NAME=PLACE` with a name in `LOGGERS`, or `package.module:function`.

    Raises:
        ScenarioError: there is no such logger, or its package is missing.
    """
    names: list[str] = []
    with ExitStack() as stack:
        logs = {str(one): stack.enter_context(_opened(one)) for one in to}

        def both(news: News) -> None:
            notify(news)
            if isinstance(news, Planned):
                names[:] = [name for name, _ in news.trials]
            if isinstance(news, Reused) and logs:
                notify(Warned(news.trial, "is reused, so that loggers are told nothing; --fresh trains it again"))
            if isinstance(news, Ended) and news.is_new:
                row = {key: value for key, value in news.round.row.items() if isinstance(value, int | float)}
                numbers = {key: float(value) for key, value in row.items() if math.isfinite(value) and key != "round"}
                for name, log in list(logs.items()):
                    try:
                        log(names[news.trial], news.round.row["round"], numbers)
                    except Exception as error:  # of a package, a server, or a user's function
                        del logs[name]
                        notify(Warned(None, f"{name} fails with {in_short(error)}{own_place(error)}: it logs no more"))

        yield both


def _opened(logger: str | Log) -> AbstractContextManager[Log]:
    """Open a logger. Raises ScenarioError if there is none, or its package is missing."""
    if not isinstance(logger, str):
        return nullcontext(logger)
    name, _, place = logger.partition("=")
    if name not in LOGGERS and ":" in logger:
        return nullcontext(named(logger, {}, KEY))
    if name not in LOGGERS or not place:
        raise ScenarioError("is no logger", key=KEY, found=logger, allowed=[f"{known}=PLACE" for known in LOGGERS])
    return _importing(LOGGERS[name](place), logger)


@contextmanager
def _importing(opened: AbstractContextManager[Log], logger: str) -> Iterator[Log]:
    with ExitStack() as stack:
        try:
            log = stack.enter_context(opened)
        except ModuleNotFoundError as error:
            problem = f"needs {error.name}: pip install 'sfl-sim[loggers]'"
            raise ScenarioError(problem, key=KEY, found=logger) from error
        yield log
