"""Commands that answer questions without training: whatif, reprice, advise, devices."""

from __future__ import annotations

from itertools import chain
from math import isnan
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from sfl_sim.cli.app import (
    Device,
    ScenarioFile,
    SetOption,
    Terminal,
    Vary,
    app,
    conclude,
    place_of_page,
    read_study,
    say,
)
from sfl_sim.errors import ScenarioError, blamed_on

devices = typer.Typer(no_args_is_help=True)
app.add_typer(devices, name="devices", help="Rates and costs of your own devices and links.")

RunOption = Annotated[
    list[Path],
    typer.Option("--run", help="The folder of a training run whose accuracy is shown at its configurations."),
]


@app.command()
def whatif(
    scenario: ScenarioFile,
    vary: Vary = [],
    overrides: SetOption = [],
    runs: RunOption = [],
    out: Annotated[Path | None, typer.Option(help="The folder; by default reports/<name>-whatif.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Configurations to walk side by side.")] = 1,
    uncertainty: Annotated[
        int | None,
        typer.Option(
            min=2, metavar="N", help="Time all again in N systems drawn from the errors of prices and profiles."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the page.")] = False,
) -> None:
    """Time the rounds of a scenario, without training, at all combinations of what varies.

    Example: sfl-sim whatif cuts/mobilenet_v1 --vary model.cut=all --vary clients.network.scale=0.25,1,4
    """
    from sfl_sim.scenario.vary import read_axes

    axes = read_axes(vary)
    study = read_study(scenario, overrides)
    from sfl_sim.cli.progress import progress
    from sfl_sim.features.whatif.study import run_whatif

    with progress(Terminal(stderr=True), quiet) as notify:
        outcome = run_whatif(study, axes, out, jobs=jobs, notify=notify, runs=runs, draws=uncertainty or 0)
    from sfl_sim.features.whatif.page import whatif_in_terminal

    conclude(outcome, "whatif.html", None if quiet else whatif_in_terminal)


@app.command()
def reprice(
    run: Annotated[Path, typer.Argument(help="The folder of a training run.")],
    overrides: SetOption = [],
    out: Annotated[Path | None, typer.Option(help="The folder; by default reports/<name>-repriced.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the report.")] = False,
) -> None:
    """Time a stored run again with other devices, links or server, and say whether what it learned still holds.

    Example: sfl-sim reprice reports/heterogeneous_bw --set clients.network.scale=4
    """
    from sfl_sim.cli.progress import progress
    from sfl_sim.studies.reprice import Repricing

    with blamed_on(run):
        repricing = Repricing(run, overrides)
        with progress(Terminal(stderr=True), quiet) as notify:
            outcome = repricing.run(out, notify)
    from sfl_sim.report.terminal import repriced_in_terminal

    conclude(outcome, "report.html", None if quiet else repriced_in_terminal)


@app.command()
def advise(
    scenario: ScenarioFile,
    overrides: SetOption = [],
    per_client: Annotated[bool, typer.Option("--per-client", help="Choose a cut for each client.")] = False,
    memory: Annotated[str | None, typer.Option(help="Memory of a client: 256MB, 1.5GB ...")] = None,
    accuracy: Annotated[
        float | None, typer.Option(help="Accuracy that a cut must have reached in recorded runs.")
    ] = None,
    runs: Annotated[list[Path], typer.Option("--run", help="The folder of a recorded run.")] = [],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only what to paste.")] = False,
) -> None:
    """Choose the cuts with the shortest rounds, by the clock alone.

    Example: sfl-sim advise cuts/mobilenet_v1 --memory 100MB
    """
    study = read_study(scenario, overrides)
    from sfl_sim.cli.progress import progress
    from sfl_sim.report.terminal import advice_in_terminal, advised_settings
    from sfl_sim.studies.advise import Criteria, find_advice, read_bytes

    criteria = Criteria(per_client, None if memory is None else read_bytes(memory), accuracy, runs)
    with progress(Terminal(stderr=True), quiet) as notify:
        advice = find_advice(study, criteria, notify)
    if not quiet:
        Terminal().print(advice_in_terminal(advice.choices, advice.cuts, advice.clients))
    for line in advised_settings(advice.choices):
        say(line)


@devices.command()
def measure(
    scenario: ScenarioFile,
    overrides: SetOption = [],
    cuts: Annotated[
        str, typer.Option(help="Layers after which to cut, by number or name, with commas between them; all, or none.")
    ] = "all",
    batches: Annotated[str, typer.Option(help="Sizes of mini-batches, with commas between them.")] = "1,16",
    name: Annotated[str | None, typer.Option(help="What the rows call this machine; by default its own name.")] = None,
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that compute; by default as torch has them.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The table to write, a CSV file.")] = Path("measured.csv"),
    blank: Annotated[
        bool,
        typer.Option(help="Measure nothing: write a ? for each time, to be replaced by what another runtime took."),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the path of the table.")] = False,
) -> None:
    """Measure a scenario's network on this machine, whole and in parts, for sfl-sim devices fit.

    Example: sfl-sim devices measure heterogeneous_bw --name "Raspberry Pi 5" --out pi.csv
    """
    sizes = [_whole(size, "--batches") for size in batches.split(",")]
    study = read_study(scenario, overrides)
    place = place_of_page(out, ".csv")
    import torch

    from sfl_sim.features.devices.measure import measure as measured
    from sfl_sim.training.hardware import pick_device

    if threads:
        torch.set_num_threads(threads)
    chosen = None if cuts == "all" else [_cut(text) for text in cuts.split(",")] if cuts != "none" else []
    variant = study.variants[0]
    with place.open("w", encoding="utf-8") as table, variant.places.locating():
        measured(
            variant.scenario, table, machine=name, cuts=chosen, batches=sizes, blank=blank,
            device=pick_device(device), notify=(lambda row: None) if quiet else say,
        )  # fmt: skip
    say(out)


def _whole(text: str, key: str) -> int:
    if not text.strip().isdecimal() or not int(text):
        raise ScenarioError("no number of samples", key=key, found=text, allowed="whole numbers above 0, as 1,16")
    return int(text)


def _cut(text: str) -> int | str:
    return int(text) if text.strip().isdecimal() else text.strip()


@devices.command()
def fit(
    measured: Annotated[
        Path,
        typer.Argument(
            help="CSV file: rows of devices measure; or device, network or macs, forward_ms, step_ms. Or the folder of "
            "a live run."
        ),
    ],
    cost: Annotated[
        str | None,
        typer.Option(
            help="The cost profile that the scenario will name; macs: MACs alone. By default phones, or that of the "
            "live run."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The profile of devices to write, by default devices.csv; of a live run, its scenario with what it "
            "has measured, by default calibrated.yaml."
        ),
    ] = None,
) -> None:
    """Fit rates, training factors and costs of your own devices to measured times; write profiles of them.

    Example: sfl-sim devices fit measured.csv --out phones.csv
    """
    if measured.is_dir():
        _calibrate_live(measured, cost, out or Path("calibrated.yaml"))
        return
    out, cost = out or Path("devices.csv"), cost or "phones"
    from sfl_sim.features.devices.fit import calibrate_devices as calibrate
    from sfl_sim.features.devices.fit import write_profile

    place = place_of_page(out, ".csv")
    found = calibrate(measured, cost)
    written = write_profile(found, place, measured)
    rates, factors = (found.devices[column].to_numpy(float) for column in ("macs_per_s", "training_factor"))
    for device, rate, factor in zip(found.devices["device"], rates, factors, strict=True):
        trains = "unknown" if isnan(factor) else f"{factor:.3g}"
        say(f"{device}: {rate / 1e9:.3g} GMAC/s, training factor {trains}")
    if found.own is None:
        say(f"costs of calls, moved data and weights: those of {cost}, since these rows tell none that predict better")
    for what, macs in found.costs().items():
        say(f"cost of {what}: {f'{macs:.3g} MACs' if macs else 'not told apart by these rows'}")
    networks, groups = found.rows["network"].nunique(), found.rows["group"].nunique()
    of = f"by network ({networks})" if networks > 1 else f"by part of the one network ({groups})"
    for kind, what in (("forward", "forward passes"), ("step", "training steps")):
        for column, when in (("fitted_ms", "left"), ("unseen_ms", f"when left out {of}")):
            if len(errors := found.error(kind, column)):
                sizes = abs(errors)
                say(f"error {when}, {len(sizes)} {what}: median {median(sizes):.0%}, largest {max(sizes):.0%}")
    if networks < 3:
        say(f"of {networks} network{'s' * (networks > 1)} there is no guarantee for another one")
    say(f"clients.compute: {{profile: {out}, cost: {written}}}")
    if len(rates) == 1:
        say(f"as a server: {{macs_per_s: {rates[0] / (1 if isnan(factors[0]) else factors[0]):.4g}, cost: {written}}}")


def _calibrate_live(run: Path, cost: str | None, out: Path) -> None:
    from sfl_sim.features.live.calibration import calibrate_live
    from sfl_sim.scenario.load import dump_study
    from sfl_sim.store.files import write_file

    place = place_of_page(out, ".yaml")
    found = calibrate_live(run, cost)
    header = f"# Rates of devices, links and server as measured in the live run {run.name} (sfl-sim devices fit).\n"
    write_file(place, (header + dump_study(found.study)).encode())
    for node, kind, part, lasts_s, priced_s, ratio in found.errors.itertuples(index=False):
        what = f"{node} {kind}" + (f" {part}" if part else "")
        say(f"{what}: {1000 * lasts_s:.3g} ms measured, {1000 * priced_s:.3g} ms with these rates, ratio {ratio:.2f}")
    say(str(place))


@devices.command()
def convert(
    form: Annotated[
        str,
        typer.Argument(
            help="hsdpa, pensieve, mahimahi, fcc, ucc_5g, mobiperf, fedscale_capacity, fedscale_behaviour or flash."
        ),
    ],
    files: Annotated[list[Path], typer.Argument(help="The files, or a folder of them.")],
    out: Annotated[Path, typer.Option(help="The folder to write the profiles to.")] = Path("converted"),
) -> None:
    """Make profiles of links, devices and availability from measurements in the forms in which others publish them.

    Example: sfl-sim devices convert mahimahi Verizon-LTE-driving.up Verizon-LTE-driving.down --out verizon
    """
    from sfl_sim.features.devices.convert import FORMS
    from sfl_sim.features.devices.convert import convert as converted

    if form not in FORMS:
        raise ScenarioError("no such form", key="devices convert", found=form, allowed=list(FORMS))
    inside = [sorted(each.iterdir()) if each.is_dir() else [each] for each in files]
    named = [each for each in chain.from_iterable(inside) if each.is_file() and not each.name.startswith(".")]
    if not named:
        raise ScenarioError("no such file", key="devices convert", found=str(files[0]))
    by_key: dict[str, list[str]] = {}
    for found in converted(form, named, out):
        by_key.setdefault(found.key, []).append(found.name)
    for key, names in by_key.items():
        say(f"{key}: {out if len(names) > 1 else out / f'{names[0]}.csv'}")
