"""Commands that show what there is: stored runs, scenarios, models."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from sfl_sim.console import Device, Runs, SetOption, Terminal, read_study, say, writable
from sfl_sim.errors import ScenarioError, blamed_on
from sfl_sim.installed import is_of_library
from sfl_sim.report import PAGES

if TYPE_CHECKING:
    from sfl_sim.scenario.load import Study

lists = typer.Typer(
    name="list",
    no_args_is_help=True,
    help="List what a scenario may name, its keys, costs of layers, and stored runs.",
)
LISTS = ("methods", "models", "datasets", "partitions", "orders", "codecs", "profiles")
"""What a scenario may name."""
MODELS = "safetensors"
"""Format of an export that is no table and no figure."""


def report(
    runs: Runs,
    out: Annotated[
        Path | None,
        typer.Option(help="The page; by default report.html in the folder of the export or of the only run."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write tables and figures to this folder.")
    ] = None,
    format: Annotated[
        list[str],
        typer.Option(
            help="Formats of the export: csv (default), parquet, tex, svg, pdf, png, graphml, json, or csv,svg ... "
            "Or safetensors: the trained models. Or trace: RUN/trace.json.gz, the timeline for ui.perfetto.dev."
        ),
    ] = [],
    log: Annotated[
        str | None,
        typer.Option(metavar="NAME=PLACE", help="Log their rounds, as run --log does: mlflow=STORE, wandb=PROJECT ..."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser; of one run, the page that it has.")
    ] = False,
    plotly: Annotated[
        Literal["embedded", "directory"],
        typer.Option(help="Where the 5 MB that draw figures are: in the page, or once beside all pages of a folder."),
    ] = "embedded",
) -> None:
    """Write the report of stored runs again, or one page for several.

    Of a folder that holds runs, a list of them with links, DIR/index.html; of a benchmark's, its page from its table.
    Of a run with attacks also its page on privacy, NAME-privacy.html beside --out NAME.html. With --log or --format
    trace, a page is written only where --out or --export asks for one.

    Example: sfl-sim report reports/first reports/second --out both.html
    """
    formats = [word.strip() for text in format for word in text.split(",")]
    is_stored = show and len(runs) == 1 and not (out or export or log or format)
    if not (export or log or format) and len(runs) == 1 and (found := _of_many_runs(runs[0])):
        name, write = found
        if plotly == "directory" and name == "index.html":
            raise ScenarioError("a list of runs has no figures", key="--plotly", found=plotly)
        written = write(runs[0], writable(out) if out else runs[0] / name)
        if plotly == "directory":
            from sfl_sim.report.html_page import share_plotly

            share_plotly(written)
        _open(written) if show else say(written)
        return
    drawn = [form for form in formats if form not in ("trace", MODELS)]
    asks_for_page = out or show or (export and (drawn or MODELS not in formats))
    is_written = not is_stored and bool(asks_for_page or not (log or len(drawn) < len(formats)))
    if plotly != "embedded" and not is_written:
        raise ScenarioError("no page is written", key="--plotly", found=plotly, allowed="with --out")
    if is_stored:
        _open(_stored_page(runs[0]))
        return
    if (drawn or MODELS in formats) and not export:
        raise ScenarioError("needs a folder: --export DIR", key="--format")
    page = writable(out) if out else export / "report.html" if export else None
    with blamed_on(*runs):
        if log:
            from sfl_sim.report.display import plural
            from sfl_sim.studies.loggers import log_runs

            say(f"{log}: {plural(log_runs(runs, log), 'run')} logged")
        if "trace" in formats:
            from sfl_sim.report.display import plural
            from sfl_sim.report.load import load_unchanged
            from sfl_sim.report.perfetto import write_trace

            for run in runs:
                trace, n_left_out = write_trace(load_unchanged(run).folder)
                say(trace)
                if n_left_out:
                    say(f"warning: {trace} leaves out the last {plural(n_left_out, 'operation')} of the run", err=True)
        if export and MODELS in formats:
            from sfl_sim.studies.kept_models import save_models

            for run in runs:
                for folder in save_models(run, export / run.resolve().name if len(runs) > 1 else export):
                    say(folder)
        if is_written:
            page = page or _page_of(runs, "report.html")
            _write_report(runs, page, export, drawn or ["csv"], plotly)
            if show:
                _open(page)


def _of_many_runs(folder: Path) -> tuple[str, Callable[[Path, Path], Path]] | None:
    """Return the name of the page of a folder that is no run and has runs in it, and what writes it; else None."""
    if not folder.is_dir() or (folder / "manifest.json").exists():
        return None
    from sfl_sim.report.load import BENCHMARK
    from sfl_sim.report.pages.benchmark import write_benchmark
    from sfl_sim.report.pages.run_list import stored_runs, write_run_list

    if (folder / BENCHMARK).exists():
        return "benchmark.html", write_benchmark
    return ("index.html", write_run_list) if stored_runs(folder) else None


def _write_report(runs: list[Path], page: Path, export: Path | None, formats: list[str], plotly: str) -> None:
    from sfl_sim.report.export import export_runs
    from sfl_sim.report.html_page import share_plotly
    from sfl_sim.report.pages.run import write_report

    if export:
        say(export_runs(runs, export, formats))
    pages = [write_report(runs, page)]
    if len(runs) == 1 and (runs[0] / "leakage.parquet").exists():
        from sfl_sim.report.pages.privacy import write_privacy

        name = "privacy.html" if page.name == "report.html" else f"{page.stem}-privacy.html"  # one for each --out
        pages.append(write_privacy(runs[0], page.with_name(name)))
    for written in pages:
        if plotly == "directory":
            share_plotly(written)
        say(written)


def _stored_page(run: Path) -> Path:
    """Return the page in the folder of a run, a serving or a what-if, or in that of this name in reports/."""
    pages = [folder / page for folder in (run, Path("reports") / run) for page in PAGES]
    page = next((page for page in pages if page.is_file()), None)
    if page is None:
        raise ScenarioError("has no page", key="RUN", found=str(run), allowed="a folder with " + ", ".join(PAGES))
    return page


def _open(page: Path) -> None:
    import webbrowser

    webbrowser.open(page.resolve().as_uri())
    say(page)


def landscape(
    runs: Runs,
    out: Annotated[Path | None, typer.Option(help="The page; by default landscape.html in the only run.")] = None,
    points: Annotated[int, typer.Option(max=9999, help="Points of the line through each model; odd.")] = 25,
    samples: Annotated[int, typer.Option(min=1, help="Number of test samples on which the loss is measured.")] = 1000,
    device: Device = "auto",
) -> None:
    """Show how flat the loss is around the final models of stored runs.

    Example: sfl-sim landscape reports/heterogeneous_bw
    """
    from sfl_sim.console.progress import progress
    from sfl_sim.studies.landscape import Extent, survey

    page = writable(out, ".html", ".parquet") if out else _page_of(runs, "landscape.html")
    with progress(Terminal(stderr=True)) as notify, blamed_on(*runs):
        survey(runs, page, Extent(points, samples), device=device, notify=notify)
    say(page)


def _page_of(runs: list[Path], name: str) -> Path:
    if len(runs) > 1:
        raise ScenarioError("several runs need a path for their common page", key="--out")
    return runs[0] / name


def check(
    scenario: Annotated[
        str, typer.Argument(help="A YAML file, the name of a shipped scenario, or the folder of a run.")
    ],
    overrides: SetOption = [],
    steps: Annotated[
        list[bool],  # so that both can be refused
        typer.Option(
            "--step/--no-data",
            metavar="<bool>",
            help="Also take the first step of every variant, however long it takes; or check keys, values and names "
            "alone, in less than a second.",
        ),
    ] = [],
    partition: Annotated[
        Path | None, typer.Option(metavar="PAGE", help="Also show which training samples each client holds, on a page.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Of a run: also walk its timeline again, which takes longer (law 12).")
    ] = False,
) -> None:
    """Check a scenario, its data and its profiles without running it; or a run, whether it keeps the laws.

    Of a run, a line for each law of docs/laws.md; exit code 1 if one is broken.

    Example: sfl-sim check mine.yaml --partition who.html
    """
    takes_step, takes_no_data = True in steps, False in steps
    if takes_step and takes_no_data:
        raise ScenarioError("cannot be given together with --no-data", key="--step")
    if os.path.isdir(scenario):
        given = {"--set": overrides, "--no-data": takes_no_data, "--step": takes_step, "--partition": partition}
        if refused := [option for option, value in given.items() if value]:
            raise ScenarioError("is for scenarios, and this is a folder", key=refused[0], found=scenario)
        _hold_against_laws(Path(scenario), again)
        return
    if again:
        raise ScenarioError("is for the folder of a run", key="--again", found=scenario)
    study = read_study(scenario, overrides)
    if partition:
        _show_partition(study, writable(partition, key="--partition"))
    if not takes_no_data:
        from sfl_sim.features.serve.study import ServedStudy
        from sfl_sim.runs.trial import Settings
        from sfl_sim.studies.train import check as problems

        for problem in problems(study, steps_s=inf if takes_step else 0.0):
            say(f"warning: {problem}", err=True)
        if any(variant.scenario.serving for variant in study.variants):
            ServedStudy(study, Settings())
    names = dict.fromkeys(variant.name for variant in study.variants)
    checked = "keys, values and names are fine" if takes_no_data else "fine"
    say(f"{scenario}: {checked} ({len(study.variants)} runs: {'; '.join(names)})")


def _hold_against_laws(run: Path, again: bool) -> None:
    """Print a line for each law. Raises SystemExit(1) if the run breaks one."""
    from sfl_sim.report.display import plural
    from sfl_sim.store.folder import changed_files
    from sfl_sim.studies.laws import Breach, held_against, trials_of

    if names := changed_files(run):
        say(f"warning: {', '.join(names)} is not what the run has written", err=True)
    trials, n_broken = trials_of(run), 0
    for law, findings in held_against(trials, again):
        verdict, more = "holds", ""
        for trial, finding in findings:
            if isinstance(finding, Breach):
                verdict, more = "breaks", f" {finding.file} row {finding.row}: {finding.why}"
                n_broken += 1
                break
            if finding and not more:
                name = f"{trial.summary['name']}, seed {trial.summary['seed']}"
                verdict, more = "cannot all be told", f" Not: {finding.why} ({name})"
        say(f"{law.number:2} {verdict}: {law.statement}{more}")
    if n_broken:
        say(f"sfl-sim: {run} breaks {plural(n_broken, 'law')}", err=True)
        raise SystemExit(1)


def _show_partition(study: Study, page: Path) -> None:
    from sfl_sim.report.pages.system import preview_in_terminal, write_preview
    from sfl_sim.studies.partition_preview import preview

    dealt = preview(study)
    Terminal().print(preview_in_terminal(dealt))
    say(write_preview(dealt, page))


@lists.command()
def keys() -> None:
    """Print a scenario to begin with: every key with its default and its meaning.

    Example: sfl-sim list keys > mine.yaml
    """
    from sfl_sim.scenario.schema import template

    typer.echo(template(), nl=False)


@lists.command()
def schema() -> None:
    """Print the JSON Schema of scenarios, for editors.

    Example: sfl-sim list schema > scenario.schema.json
    """
    from sfl_sim.build.catalogue import choices, method_options
    from sfl_sim.scenario.schema import json_schema

    typer.echo(json.dumps(json_schema(method_options(), choices()), indent=2))


@lists.command()
def layers(
    model: Annotated[
        str,
        typer.Argument(help="A model's name, package.module:make for your own, or a folder in Hugging Face's format."),
    ],
    input_shape: Annotated[
        str | None, typer.Option("--input", metavar="SHAPE", help="One sample's shape, as 3x32x32; 80 for 80 tokens.")
    ] = None,
    n_labels: Annotated[int | None, typer.Option("--labels", min=1, help="Number of labels.")] = None,
) -> None:
    """Show what the layers of a model cost, and where it is best cut.

    Example: sfl-sim list layers mobilenet_v1 --input 3x32x32
    """
    from sfl_sim.build.catalogue import choices, shipped
    from sfl_sim.build.code_version import described
    from sfl_sim.build.layer_table import usual_data, with_cuts
    from sfl_sim.report.pages.system import layers_in_terminal

    is_folder = os.path.exists(model) and model not in choices()["model.name"]
    usual_shape, usual_labels = ((512,), 1) if is_folder else usual_data(model)
    shape = usual_shape if input_shape is None else _shape(input_shape)
    labels = n_labels or usual_labels
    if model in shipped()["models"] and (shape, labels) == (usual_shape, usual_labels):
        costs = described(f"layers of {model}", lambda: _costs({"name": model}, shape, labels))
    else:
        is_code = ":" in model and not is_of_library(model)
        given = {"name": "hf", "path": model} if is_folder else {"factory" if is_code else "name": model}
        costs = _costs(given, shape, labels)
    table = with_cuts(costs)
    sizes = table["out_shape"].iloc[-1].split("x")
    scores = sizes[0] if len(sizes) == 3 else sizes[-1]  # of each pixel, or of each token
    Terminal(soft_wrap=True).print(layers_in_terminal(table.assign(model=model), shape, int(scores)))


def _costs(model: dict[str, str], shape: tuple[int, ...], n_labels: int) -> dict[str, list[Any]]:
    from sfl_sim.build.layer_table import costs
    from sfl_sim.build.registry import find_model
    from sfl_sim.models.zoo import network
    from sfl_sim.scenario.sections import ModelSection

    return costs(network(find_model(ModelSection.model_validate(model)), shape, n_labels))


def _shape(text: str) -> tuple[int, ...]:
    sizes = text.split("x")
    if not all(re.fullmatch("[0-9]{1,9}", size) and int(size) for size in sizes):
        raise ScenarioError("is not the shape of a sample", key="--input", found=text, allowed="such as 3x32x32 or 80")
    return tuple(map(int, sizes))


@lists.command()
def scenarios(
    family: Annotated[str | None, typer.Argument(help="Show what each scenario of a family asks.")] = None,
) -> None:
    """List the scenarios that come with sfl-sim, by family.

    Example: sfl-sim list scenarios forgetting
    """
    from sfl_sim.scenario.files import scenario_names

    about, members = scenario_names(), defaultdict[str, list[str]](list)
    for name in about:
        head, _, member = name.partition("/")
        members[head].append(member)
    if family is None:
        rows = [(head, str(len(of)), ", ".join(of) if all(of) else about[head]) for head, of in members.items()]
        _show(rows, "ellipsis")
        say("`sfl-sim list scenarios FAMILY` shows what each of them asks.")
    elif chosen := [name for name in about if f"{name}/".startswith(f"{family}/")]:
        _show([(name, about[name]) for name in chosen])
    else:
        raise ScenarioError("no such family", key="FAMILY", found=family, allowed=members)


@lists.command()
def runs() -> None:
    """List the runs in reports/: when, whether finished, and what differs from the run of that name before.

    Example: sfl-sim list runs
    """
    from sfl_sim.report.pages.run_list import stored_runs

    stored = stored_runs(Path("reports"))
    if not stored:
        raise ScenarioError("holds no run", key="list runs", found="reports", allowed="the folder above reports/")
    _show([(run.name, f"{run.when:%Y-%m-%d %H:%M}", run.state, run.differs) for run in stored])


def _show(rows: Sequence[Sequence[str]], overflow: Literal["fold", "ellipsis"] = "fold") -> None:
    """Print rows; what is too long of the last column goes on in the next line, or is cut off by an `ellipsis`."""
    table = Table(show_header=False, box=None, pad_edge=False, expand=True)
    *columns, _ = zip(*rows, strict=True)
    for texts in columns:
        table.add_column(width=max(map(len, texts)))
    table.add_column(ratio=1, no_wrap=overflow == "ellipsis", overflow=overflow)
    for row in rows:
        table.add_row(*row)
    Terminal(soft_wrap=True).print(table)


def _list(what: str) -> None:
    def names() -> None:
        from sfl_sim.build.catalogue import catalogue

        _show([*catalogue()[what].items()])

    about = f"List {what}, with a line of explanation each.\n\nExample: sfl-sim list {what}"
    lists.command(what, help=about)(names)


for _what in LISTS:
    _list(_what)
