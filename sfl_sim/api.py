"""Python API: run a scenario and read its results as pandas frames."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import pandas as pd
import plotly.graph_objects as go
from torch import Tensor, nn

from sfl_sim.build.setup import forget
from sfl_sim.console import Terminal
from sfl_sim.console.progress import progress as show_progress
from sfl_sim.data.own import as_dataset
from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.walk import Round
from sfl_sim.errors import ScenarioError
from sfl_sim.features.serve.study import ServedStudy
from sfl_sim.features.whatif.study import run_whatif
from sfl_sim.report.frames import merge
from sfl_sim.report.load import ABOUT
from sfl_sim.report.load import load as load_run
from sfl_sim.report.results import results_table
from sfl_sim.report.terminal import in_plain_text, results_in_terminal
from sfl_sim.runs.cache_key import own_sources
from sfl_sim.runs.news import Notify, silent
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.files import scenario_file
from sfl_sim.scenario.load import Overrides, Study, parse, read_overrides
from sfl_sim.scenario.load import load as load_scenario
from sfl_sim.scenario.own_code import Permission, permitted
from sfl_sim.scenario.sections import Scenario
from sfl_sim.scenario.vary import axis
from sfl_sim.store.folder import check_unchanged
from sfl_sim.store.reading import file_of, read_entries, read_table
from sfl_sim.store.schema import FolderKind, tables
from sfl_sim.studies.advise import Advice, Criteria, find_advice
from sfl_sim.studies.kept_models import WhichRound, kept_model, save_models
from sfl_sim.studies.launch import TrialsFailed as TrialsFailed  # which users catch
from sfl_sim.studies.loggers import Log, logging
from sfl_sim.studies.points import attacked
from sfl_sim.studies.reprice import Repricing
from sfl_sim.studies.train import run_study
from sfl_sim.training.process import own_process

RoundEnd = Callable[[Round, Experiment], object]


def _table(name: str, about: str) -> cached_property[pd.DataFrame]:
    """Return a property that reads a table of a folder once."""

    def read(stored: _Folder) -> pd.DataFrame:
        table = tables(stored.kind)[name]
        if file_of(stored.folder, table) is None:
            problem = f"has no {table.file}" + (f", which there is only with {table.only}" if table.only else "")
            raise ScenarioError(problem, key="folder", found=str(stored.folder))
        if not table.under:
            return read_table(stored.folder, table)
        names = {column.stored: column_name for column_name, column in table.columns.items() if column.stored}
        return pd.json_normalize(read_entries(stored.folder, table)).rename(columns=names)

    read.__doc__ = about
    return cached_property(read)


@dataclass(frozen=True)
class _Folder:
    folder: Path
    kind: ClassVar[FolderKind]

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", _expanded(self.folder))


class Results(_Folder):
    """A stored run; its tables are read when they are asked for (columns: docs/output.md)."""

    kind = "run"

    rounds = _table("rounds", "One row per variant, seed and round.")
    participants = _table("participants", "One row per variant, seed, round and client that took part in it.")
    labels = _table("labels", "One row per variant, seed, round and label.")
    clients = _table("clients", "One row per variant, seed and client: its device, links, data and cut.")
    layers = _table("layers", "One row per variant, seed and layer of the model: what it costs.")
    ops = _table("ops", "One row per operation; large runs have millions.")
    leakage = _table("leakage", "One row per variant, seed, attack and metric; only with `report.leakage`.")
    summary = _table("summary", "Headline figures: one row per variant and seed.")

    def __str__(self) -> str:
        """The table that `sfl-sim` prints: medians over seeds, and their spread."""
        return in_plain_text(results_in_terminal(self.folder))

    def _repr_html_(self) -> str:
        """The table of results for a notebook."""
        from sfl_sim.report.html_page import table_html  # with it comes plotly

        return table_html(results_table(merge([load_run(self.folder)])))

    def _ipython_display_(self) -> None:
        """Show the table of results and the figure of `plot` below the cell of a notebook."""
        from IPython.display import HTML, display  # every notebook has it

        display(HTML(self._repr_html_()))
        display(self.plot())

    def to_latex(self) -> str:
        """Return the table of results as LaTeX: medians over seeds, their spread, and the best in bold (booktabs)."""
        return results_table(merge([load_run(self.folder)])).in_latex()

    def plot(self, against: Literal["time", "rounds", "bytes"] = "time") -> go.Figure:
        """Draw the accuracy of each variant against simulated time, rounds or bytes, as its page does.

        Where no accuracy is known, as in a timing-only run, it is the time of a round by resource.
        """
        from sfl_sim.report.pages.run import results_figure  # with it comes plotly

        return results_figure(self.folder, against)

    def state_dict(
        self, variant: str | None = None, seed: int | None = None, client: int | None = None, round: WhichRound = None
    ) -> dict[str, Tensor]:
        """Return the global model after training, as the `load_state_dict` of your own module takes it.

        Products of adapters (`lora`) are added to what they adapt.

        Args:
            variant: name of the variant; None: the only one.
            seed: None: the first one.
            client: the client whose part-1 it shall have, for methods that keep one for each (splitfed_v3, ...).
            round: after this round, of those that `report.keep` names; "best": the best by validation; None: the last.

        Raises:
            ScenarioError: there is no such model.
        """
        return kept_model(self.folder, variant, seed, round).state_dict(client)

    def model(
        self,
        variant: str | None = None,
        seed: int | None = None,
        client: int | None = None,
        round: WhichRound = None,
        *,
        allow_code: bool = False,
    ) -> nn.Module:
        """Return the trained model as one module, which is yours if the scenario names one; arguments: `state_dict`.

        Raises:
            ScenarioError: there is no such model, or its module cannot be made in this process.
        """
        with _apart(allow_code):
            return kept_model(self.folder, variant, seed, round).module(client)

    def save_models(self, folder: str | Path) -> list[Path]:
        """Write all stored models as safetensors, as `sfl-sim report --format safetensors`; returns their folders."""
        return save_models(self.folder, _expanded(folder))


class Served(_Folder):
    """A served study; its tables are read when they are asked for (columns: docs/output.md)."""

    kind = "serving"

    requests = _table("requests", "One row per variant, seed and request; large studies have millions.")
    fleet = _table("fleet", "One row per variant, seed and client: its device, links and share of the model.")
    summary = _table("trials", "Times of the requests: one row per variant and seed.")


class WhatIf(_Folder):
    """A what-if study; its tables are read when they are asked for (columns: docs/output.md)."""

    kind = "whatif"

    points = _table("points", "One row per configuration and seed: what an average round takes, and where.")
    clients = _table(
        "clients", "One row per configuration, seed and client: where it spends its rounds, what it needs."
    )
    draws = _table("draws", "One row per configuration and drawn system, and what was drawn; only with `draws`.")
    layers = _table("layers", "One row per layer of the model: what it costs.")
    overlay = _table(
        "overlay", "One row per configuration and seed whose accuracy a training run tells; only with `runs`."
    )


def load(folder: str | Path) -> Results | Served | WhatIf:
    """Open the folder of a run, of a serving or of a what-if.

    Raises ScenarioError if it is none of them, or if a file in it is not what was written.
    """
    path = _expanded(folder)
    check_unchanged(path, "folder")
    for kind in (Results, Served, WhatIf):
        if (path / ABOUT[kind.kind]).exists():
            return kind(path)
    raise ScenarioError("is not the folder of a run, a serving or a what-if", key="folder", found=str(folder))


def run(
    scenario: str | Path | Scenario | Mapping[str, Any],
    *,
    overrides: Overrides = (),
    data: Any = None,
    on_round_end: RoundEnd | list[RoundEnd] | None = None,
    log: Sequence[str | Log] = (),
    out: str | Path | None = None,
    jobs: int | None = 1,
    timing_only: bool = False,
    device: str = "auto",
    threads: int | None = None,
    resume: bool = False,
    fresh: bool = False,
    backend: str = "local",
    address: str | None = None,
    progress: bool | None = None,
    allow_code: bool = False,
) -> Results:
    """Run a scenario as the command line does.

    Args:
        scenario: a YAML file, the name of a shipped scenario, a `Scenario`, or a mapping as in the YAML file, whose
            values may be Python objects: arrays and frames for lists, and your own model, method, order, ...
        overrides: `key=value` texts, or a mapping from dotted keys to values, which may be Python objects.
        data: data of your own: (x_train, y_train, x_test, y_test) as arrays or tensors, or two torch data sets.
        on_round_end: functions of your own that are called after every round, and end training by returning true.
        log: loggers of every round, live: `tensorboard=FOLDER`, `wandb=PROJECT`, `mlflow=STORE`, or functions of a
            trial's name, the number of the round, and its numbers.
        out: the run's folder; by default `reports/<name>`, or the next free number.
        jobs: variants and seeds to run side by side; None: as many as pay, as `--jobs auto`.
        timing_only: simulate time without training.
        device: auto, cpu or cuda.
        threads: intra-op threads of a run; all cores unless given.
        resume: go on with an interrupted run of the same scenario, as `--resume` does.
        fresh: run what other runs in reports/ (or beside `out`) have finished, too.
        backend: local, or ray.
        address: of a Ray cluster, auto or ray://...; None starts Ray here.
        progress: show the progress of all variants; None: in a notebook alone.
        allow_code: let code of your own run that the scenario names by its path; a function handed over may run anyway.

    Raises:
        ScenarioError: the scenario, the device or the folder cannot be used.
        TrialsFailed: variants failed; what the others gave is in the folder of its `outcome`.
        KeyboardInterrupt: as Ctrl-C raises it; the rounds that were finished are in the folder.
    """
    threads = Settings.threads if threads is None else threads
    settings = Settings(timing_only, device, jobs, threads, resume, not fresh, backend, address)
    with _apart(allow_code):
        given = {"data.factory": None if data is None else as_dataset(data), "train.on_round_end": on_round_end}
        study = _study(scenario, overrides, {key: each for key, each in given.items() if each is not None})
        with _shown(progress) as shown, logging(study, log, shown) as notify:
            return Results(run_study(study, _expanded(out) if out else None, settings, notify).ended())


def privacy(
    scenario: str | Path | Scenario | Mapping[str, Any],
    vary: Mapping[str, Sequence[Any] | str] | None = None,
    *,
    overrides: Overrides = (),
    out: str | Path | None = None,
    jobs: int = 1,
    device: str = "auto",
    allow_code: bool = False,
) -> Results:
    """Train a scenario at all combinations of what varies, and attack what crosses the cut, silently.

    What was found is in the result's `leakage`, and on the page `privacy.html` in its folder.

    Args:
        scenario: as of `run`.
        overrides: as of `run`.
        vary: the values of every key that varies; `{"model.cut": "all"}` tries every cut.
        out: the run's folder; by default `reports/<name>-privacy`, or the next free number.
        jobs: variants and seeds to run side by side.
        device: auto, cpu or cuda.
        allow_code: as for `run`.

    Raises:
        ScenarioError: the scenario, a key, a value or the folder cannot be used.
        TrialsFailed: as of `run`.
    """
    axes = [axis(key, values) for key, values in (vary or {}).items()]
    settings = Settings(device=device, jobs=jobs, reuse=True)
    with _apart(allow_code):
        study = attacked(_study(scenario, overrides), axes)
        return Results(run_study(study, _expanded(out) if out else None, settings, silent).ended())


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
        scenario: as of `run`.
        overrides: as of `run`.
        out: a folder for the serving; by default `reports/<name>-serving`, or the next free number.
        run: the folder of the run to serve; by default one of reports/ with its models; else they are trained.
        timing_only: train nothing, exits happen with `serving.exit_probability`.
        device: of the training: auto, cpu or cuda.
        allow_code: as for `run`.

    Raises:
        ScenarioError: the scenario, the run, the device or the folder cannot be used.
    """
    with _apart(allow_code):
        study = ServedStudy(_study(scenario, overrides), Settings(timing_only, device, resume=True, reuse=True))
        return Served(study.run(_expanded(run) if run else None, _expanded(out) if out else None, silent).ended())


def reprice(
    run: str | Path, *, overrides: Sequence[str], out: str | Path | None = None, allow_code: bool = False
) -> Results:
    """Walk a stored run again in another system, without training, silently.

    Args:
        run: the folder of a training run.
        overrides: `key=value` texts of the system: clients.compute, .network, .power, and all of server.
        out: the folder; by default `reports/<name>-repriced`, or the next free number.
        allow_code: as for `run`, for what the run's scenario names.

    What would have to be trained there has no accuracy; manifest.json says why under `repriced`.

    Raises:
        ScenarioError: there is no run or no override, the run cannot be walked again, or a key decides what is learned.
    """
    with _apart(allow_code):
        return Results(Repricing(_expanded(run), overrides).run(_expanded(out) if out else None, silent).ended())


def whatif(
    scenario: str | Path | Scenario | Mapping[str, Any],
    vary: Mapping[str, Sequence[Any] | str],
    *,
    overrides: Overrides = (),
    runs: Sequence[str | Path] = (),
    out: str | Path | None = None,
    jobs: int = 1,
    draws: int = 0,
    allow_code: bool = False,
) -> WhatIf:
    """Time the rounds of a scenario, without training, at all combinations of what varies, silently.

    Args:
        scenario: as of `run`.
        overrides: as of `run`.
        vary: the values of every key that varies; `{"model.cut": "all"}` tries every cut.
        runs: folders of training runs, whose accuracies are added to the points that they trained.
        out: a folder for the study; by default `reports/<name>-whatif`, or the next free number.
        jobs: points to walk side by side.
        draws: systems, drawn from the errors of prices and profiles, in which all points are timed again.
        allow_code: as for `run`.

    Raises:
        ScenarioError: the scenario, a key, a value, a run or the folder cannot be used.
    """
    axes = [axis(key, values) for key, values in vary.items()]
    folder = _expanded(out) if out else None
    with _apart(allow_code):
        study = _study(scenario, overrides)
        return WhatIf(
            run_whatif(study, axes, folder, jobs=jobs, notify=silent, runs=[*map(_expanded, runs)], draws=draws).ended()
        )


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
        scenario: as of `run`.
        overrides: as of `run`.
        per_client: a cut for each client instead of one for all.
        memory_bytes: maximum of a client's memory.
        accuracy: accuracy that a cut must have reached in `runs`, folders of recorded runs.
        allow_code: as for `run`.

    Raises:
        ScenarioError: the scenario or a run cannot be used, or no cut is left.
    """
    criteria = Criteria(per_client, memory_bytes, accuracy, [*map(_expanded, runs)])
    with _apart(allow_code):
        return find_advice(_study(scenario, overrides), criteria, silent)


@contextmanager
def _apart(allow_code: bool) -> Iterator[None]:
    """Return a context that neither takes over nor changes the settings of the caller's process."""
    with own_process(), permitted(Permission(allow_code)):
        yield


def _study(
    scenario: str | Path | Scenario | Mapping[str, Any], overrides: Overrides, given: Mapping[str, Any] | None = None
) -> Study:
    forget()
    own_sources.cache_clear()  # a module may have been reloaded since
    layer = read_overrides(overrides) | dict(given or {})
    if isinstance(scenario, str | Path):
        return load_scenario(scenario_file(os.path.expanduser(scenario)), layer)
    return parse(scenario, overrides=layer)


def _expanded(path: str | Path) -> Path:
    return Path(os.path.expanduser(path))


@contextmanager
def _shown(wanted: bool | None) -> Iterator[Notify]:
    """Yield a `Notify` that shows the progress of a study, if that is wanted."""
    console = Terminal(stderr=True)
    if console.is_jupyter if wanted is None else wanted:
        with show_progress(console) as notify:
            yield notify
    else:
        yield silent
