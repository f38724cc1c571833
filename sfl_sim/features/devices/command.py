"""The commands devices measure, fit and convert."""

from itertools import chain
from math import isnan
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from sfl_sim.console import Device, ScenarioFile, SetOption, read_study, say, writable
from sfl_sim.errors import ScenarioError

devices = typer.Typer(name="devices", no_args_is_help=True, help="Rates and costs of your own devices and links.")


@devices.command()
def measure(
    scenario: ScenarioFile,
    overrides: SetOption = [],
    cuts: Annotated[
        str, typer.Option(help="Layers after which to cut, by number or name, with commas between them; all, or none.")
    ] = "all",
    batches: Annotated[str, typer.Option(help="Sizes of mini-batches, with commas between them.")] = "1,16",
    name: Annotated[str | None, typer.Option(help="What the rows call this machine; by default its own name.")] = None,
    runtime: Annotated[
        str,
        typer.Option(
            help="torch, onnxruntime, openvino, mnn, ncnn or litert; other: measure nothing, and write a ? for each "
            "time, to be replaced by what took it."
        ),
    ] = "torch",
    device: Device = "auto",
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads that compute; by default as torch has them.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The table to write, a CSV file.")] = Path("measured.csv"),
) -> None:
    """Measure a scenario's network on this machine, whole and in parts, for sfl-sim devices fit.

    Example: sfl-sim devices measure heterogeneous_bw --name "Raspberry Pi 5" --out pi.csv
    """

    sizes = [_whole(size, "--batches") for size in batches.split(",")]
    study = read_study(scenario, overrides)
    writable(out, ".csv")
    import torch

    from sfl_sim.features.devices.measure import measure as measured
    from sfl_sim.training.hardware import pick_device

    if threads:
        torch.set_num_threads(threads)
    chosen = None if cuts == "all" else [_cut(text) for text in cuts.split(",")] if cuts != "none" else []
    variant = study.variants[0]
    part = out.with_name(out.name + ".part")
    try:
        with part.open("w", encoding="utf-8") as table, variant.places.locating():
            measured(
                variant.scenario, table, machine=name, cuts=chosen, batches=sizes, runtime=runtime,
                device=pick_device(device), notify=say,
            )  # fmt: skip
    except ScenarioError:
        part.unlink()
        raise
    except KeyboardInterrupt:
        say(f"the rows that are known are in {part}", err=True)
        raise
    part.replace(out)
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

    writable(out, ".csv")
    fitted = calibrate(measured, cost)
    written = write_profile(fitted, out, measured)
    rates, factors = (fitted.devices[column].to_numpy(float) for column in ("macs_per_s", "training_factor"))
    for device, rate, factor in zip(fitted.devices["device"], rates, factors, strict=True):
        trains = "unknown" if isnan(factor) else f"{factor:.3g}"
        say(f"{device}: {rate / 1e9:.3g} GMAC/s, training factor {trains}")
    if fitted.own is None:
        say(f"costs of calls, moved data and weights: those of {cost}, since these rows tell none that predict better")
    for what, macs in fitted.costs().items():
        say(f"cost of {what}: {f'{macs:.3g} MACs' if macs else 'not told apart by these rows'}")
    networks, groups = fitted.rows["network"].nunique(), fitted.rows["group"].nunique()
    of = f"by network ({networks})" if networks > 1 else f"by part of the one network ({groups})"
    for kind, what in (("forward", "forward passes"), ("step", "training steps")):
        for column, when in (("fitted_ms", "left"), ("unseen_ms", f"when left out {of}")):
            if len(errors := fitted.error(kind, column)):
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

    writable(out, ".yaml")
    fitted = calibrate_live(run, cost)
    header = f"# Rates of devices, links and server as measured in the live run {run.name} (sfl-sim devices fit).\n"
    write_file(out, (header + dump_study(fitted.study)).encode())
    for node, kind, part, lasts_s, priced_s, ratio in fitted.errors.itertuples(index=False):
        what = f"{node} {kind}" + (f" {part}" if part else "")
        say(f"{what}: {1000 * lasts_s:.3g} ms measured, {1000 * priced_s:.3g} ms with these rates, ratio {ratio:.2f}")
    say(out)


@devices.command()
def convert(
    form: Annotated[
        str,
        typer.Argument(
            help="hsdpa, pensieve, mahimahi, fcc, ucc_5g, nyu_mets, mobiperf, iperf3, speedtest, fedscale_capacity, "
            "fedscale_behaviour or flash."
        ),
    ],
    files: Annotated[list[Path], typer.Argument(help="The files, or a folder of them.")],
    out: Annotated[Path, typer.Option(help="The folder to write the profiles to.")] = Path("converted"),
) -> None:
    """Make profiles of links, devices and availability from measurements that others publish, or from your own.

    Example: sfl-sim devices convert mahimahi Verizon-LTE-driving.up Verizon-LTE-driving.down --out verizon
    """
    from sfl_sim.features.devices.convert import FORMS
    from sfl_sim.features.devices.convert import convert as converted

    if form not in FORMS:
        raise ScenarioError("no such form", key="devices convert", found=form, allowed=list(FORMS))
    if missing := next((path for path in files if not path.exists()), None):
        raise ScenarioError("no such file", key="devices convert", found=str(missing))
    inside = [sorted(path.iterdir()) if path.is_dir() else [path] for path in files]
    named = [path for path in chain.from_iterable(inside) if path.is_file() and not path.name.startswith(".")]
    if not named:
        raise ScenarioError("no such file", key="devices convert", found=str(files[0]))
    by_key: dict[str, list[str]] = {}
    profiles = converted(form, named, out)
    for profile in profiles:
        by_key.setdefault(profile.key, []).append(profile.name)
    if told := [profile for profile in profiles if profile.left_out]:
        more = f" (and of {len(told) - 1} more)" if len(told) > 1 else ""
        say(f"of {told[0].name}{more} {told[0].left_out}")
    for key, names in by_key.items():
        say(f"{key}: {out if len(names) > 1 else out / f'{names[0]}.csv'}")
