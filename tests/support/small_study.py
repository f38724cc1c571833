"""A small study for tests, with a method that can be poisoned, in whichever process it runs."""

import json
import os
import signal
from pathlib import Path

from sfl_sim.methods.base import MethodOptions
from sfl_sim.methods.fedavg import FedAvg
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.own_code import Permission, permitted
from sfl_sim.studies.launch import TrialsFailed
from sfl_sim.studies.train import run_study

SCENARIO = {
    "name": "small",
    "data": {"name": "digits", "train_samples": 48, "test_samples": 20},
    "clients": {"count": 3, "compute": 1e9, "network": {"uplink_bps": 1e6, "downlink_bps": 1e6}},
    "train": {"rounds": 3, "batch_size": 8},
    "method": {"name": "fedavg"},
}
TIMING = Settings(timing_only=True, threads=1)


POISONED_LR = 0.2


class PoisonOptions(MethodOptions):
    poison: str
    """A folder; what its file `poison` says is done to the process in round 2, with the poisoned learning rate."""


class Poisoned(FedAvg):
    """FedAvg that fails, or is killed, while there is poison."""

    Options = PoisonOptions

    def round(self, round, clients):
        poison = Path(self.options.poison, "poison")
        if round == 2 and self.task.lr == POISONED_LR and poison.exists():
            if poison.read_text() == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError(poison.read_text())
        return (yield from super().round(round, clients))


def poisoned_study(poison):
    """Three variants of which the second is poisoned while there is a file `poison`."""
    method = {"name": "small_study:Poisoned", "poison": str(poison.parent)}
    return study(method=method, grid={"train.lr": [0.1, POISONED_LR, 0.3]})


def study(**sections):
    return parse(SCENARIO | sections)


class Log:
    """A `Notify` that keeps all news, and tells each to `then`."""

    def __init__(self, study, then=lambda news: None):
        self.study, self.then, self.news = study, then, []

    def __call__(self, news):
        self.news.append(news)
        self.then(news)

    def of(self, kind):
        """The news of one kind by variant; the last of each."""
        return {self.study.variants[news.trial].name: news for news in self.news if isinstance(news, kind)}


def run(study, out, settings=TIMING, log=None):
    """Run a study without its pages, which are slow; the folder, and the failure if there is one."""
    try:
        with permitted(Permission(everything=True)):  # `Poisoned` is no part of sfl-sim
            return run_study(study, out, settings, log or Log(study)).folder, None
    except TrialsFailed as error:
        return error.outcome and error.outcome.folder, error


def summaries(folder):
    """Read the summaries of a stored run by variant, with digests."""
    return {found["name"]: found for found in json.loads((folder / "summary.json").read_text())["variants"]}
