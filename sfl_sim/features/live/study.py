"""Runs a scenario on real processes, on this machine or on others: a run whose time is measured."""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from sfl_sim.build.registry import find_method
from sfl_sim.build.setup import setup_of
from sfl_sim.errors import ScenarioError, in_short
from sfl_sim.features.live.agent import Agent, own_of
from sfl_sim.features.live.calibration import calibrate_live
from sfl_sim.features.live.links import RunKey
from sfl_sim.features.live.local import LocalNodes
from sfl_sim.features.live.machines import Machines
from sfl_sim.features.live.namespaces import SERVER_IP, Namespaces, check_kernel
from sfl_sim.features.live.on_ray import agents_on_ray
from sfl_sim.features.live.run import Live, OfScenario, check_live
from sfl_sim.ops import SERVER
from sfl_sim.runs.news import Failed, Notify, Warned
from sfl_sim.runs.trial import Settings, attempt
from sfl_sim.scenario.load import Study, Variant, extended, training
from sfl_sim.scenario.sections import Scenario
from sfl_sim.store.files import read_manifest
from sfl_sim.store.folder import RunFolder, is_begun
from sfl_sim.store.trial import read_failure
from sfl_sim.studies.launch import Outcome
from sfl_sim.studies.train import run_study

START_S, WAIT_S = 300.0, 3600.0
"""How long processes of this machine, and those of others, may take to come."""


Emulate = Literal["sleep", "netns", "none"]
"""How this machine seems to be a scenario's devices and links: its processes sleep for both; or for devices, and its
kernel carries messages at the links' rates; or not at all."""


@dataclass(frozen=True)
class LiveNodes:
    """Where the clients of a live run are, if not on this machine; its server always is.

    Attributes:
        listen: `host:port` of this machine, at which it waits for agents that are started by hand.
        key: file of the key that they show; it is written if it is not there.
        address: of a Ray cluster, which places the agents.
    """

    listen: str | None = None
    key: Path | None = None
    address: str | None = None

    @property
    def are_here(self) -> bool:
        """True if clients are processes of this machine."""
        return self.listen is self.address is None


def live(
    study: Study,
    out: Path | None,
    *,
    nodes: LiveNodes = LiveNodes(),
    emulate: Emulate | None = None,
    threads: int = 1,
    notify: Notify,
) -> Outcome:
    """Run all trials of `study` on nodes, one after another, into the folder `out` (default: `reports/<name>_live`).

    Args:
        emulate: how this machine seems as slow as the scenario; None: `sleep` if all nodes are here.
        threads: of a node.

    Raises ScenarioError for what cannot be part of a live run, and TrialsFailed after the finished trials have been
    published.
    """
    study = training(study)
    emulate = emulate or ("sleep" if nodes.are_here else "none")
    if emulate != "none" and not nodes.are_here:
        raise ScenarioError("nodes elsewhere are what they are", key="--emulate", found=emulate, allowed=["none"])
    if (nodes.listen is None) != (nodes.key is None):
        raise ScenarioError("are given together", key="--listen, --key")
    if nodes.listen and nodes.address:
        raise ScenarioError("cannot be given together with --ray", key="--listen", found=nodes.listen)
    if nodes.listen and len(study.variants) > 1:
        problem = "agents serve one variant with one seed; choose it with --set"
        raise ScenarioError(problem, key="--listen", found=f"{len(study.variants)} runs")
    for variant in study.variants:
        with variant.places.locating():
            check_live(variant.scenario, emulate == "netns")
    if emulate == "netns":
        check_kernel()
    settings = Settings(device="cpu", threads=threads, backend="live", jobs=1)
    trials = partial(_one_by_one, nodes=nodes, emulate=emulate)
    renamed = replace(study, name=f"{study.name}_live")
    return run_study(renamed, out, settings, notify, trials)


def simulate(measured: Path, notify: Notify) -> tuple[Path, Path | None]:
    """Simulate a live run with the rates that it has measured; gives the run's folder, beside that of the live one.

    Where clients share a model at the server, a second run serves them in the sequence of the live one. Raises
    ScenarioError if that is no live run.
    """
    found = calibrate_live(measured).study
    threads = read_manifest(measured)["threads"]

    def run(study: Study, what: str) -> Path:
        place = measured.with_name(f"{measured.name}_{what}")
        settings = Settings(device="cpu", threads=threads, resume=is_begun(place))
        return run_study(study, place, settings, notify).ended()

    simulated = run(found, "simulated")
    if not find_method(found.variants[0].scenario.method.name).shares_server_model:
        return simulated, None
    order = {"server.order": "recorded", "server.recorded": str(measured), "server.burst": None,
             "server.max_wait_s": None}  # fmt: skip
    return simulated, run(extended(found, order), "recorded")


def _one_by_one(
    variants: Mapping[int, Variant],
    folder: RunFolder,
    settings: Settings,
    notify: Notify,
    nodes: LiveNodes,
    emulate: Emulate,
) -> None:
    for number, variant in variants.items():
        scenario = variant.scenario
        tell = partial(_warn, notify, number)
        with gathered(scenario, nodes, settings.threads, tell, emulate == "netns") as (machines, namespaces):
            trial = Live(machines)
            measured = trial.rehearse(scenario)
            if emulate != "none":
                trial.emulate(scenario, measured, namespaces)
                if trial.links == "netns without latency":
                    tell("latency is not emulated: this kernel cannot delay packets (no netem)")
                if trial.slowdown > 1:
                    seen = f"{trial.slowdown:.3g} times as slow as in the scenario"
                    tell(f"this machine emulates it {seen}; its seconds are told as the scenario's")
            attempt(number, variant, folder.trial_folder(number), settings, notify, trial.experiment)
            if failure := read_failure(folder.trial_folder(number)):
                machines.problem = str(failure)
                notify(Failed(number, failure))


def _warn(notify: Notify, number: int, problem: str) -> None:
    notify(Warned(number, problem))


@contextmanager
def gathered(
    scenario: Scenario,
    nodes: LiveNodes,
    threads: int,
    tell: Callable[[str], None],
    apart: bool,
) -> Iterator[tuple[Machines, Namespaces | None]]:
    """Have the nodes of a scenario, ready to run it, and their namespaces if they are to be `apart`.

    They end with the block, but for agents started by hand.
    """
    setup = setup_of(scenario, pixels=True)
    n, recipe = len(setup.shares), OfScenario(setup.scenario)
    with ExitStack() as stack:
        host = "127.0.0.1" if nodes.are_here else host_of(nodes.listen) if nodes.listen else socket_address()
        machines = Machines(RunKey.new() if nodes.key is None else _key_in(nodes.key), n, tell)
        address = f"tcp://{nodes.listen or host}"
        if apart:  # a file, which all networks reach, beside the links that are emulated
            address = f"ipc://{stack.enter_context(TemporaryDirectory())}/driver"
        driver, there = machines.listen(address), machines.nodes if nodes.are_here else [SERVER]
        local = LocalNodes(there, driver, machines.key, recipe, "tcp://*" if apart else f"tcp://{host}", apart)
        stack.callback(local.end)
        stack.callback(machines.close)
        why_gone = local.why_gone
        if nodes.address:
            why_gone = stack.enter_context(agents_on_ray(nodes.address, n, driver, machines.key))
        if nodes.listen:
            tell(
                f"waiting for {n} agents: sfl-sim live agent --server {nodes.listen} --key {nodes.key} "
                f"--client 0 to {n - 1}"
            )
        try:
            machines.gather(START_S if nodes.are_here else WAIT_S, why_gone)
            namespaces = Namespaces(*local.processes(), setup.fleet) if apart else None
            machines.begin(recipe, threads, SERVER_IP if apart else host)
            yield machines, namespaces
        except BaseException as error:
            machines.problem = "interrupted" if isinstance(error, KeyboardInterrupt) else in_short(error)
            raise


def host_of(listen: str) -> str:
    """Give the host of `host:port`. Raises ScenarioError if it is none."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise ScenarioError("is no address", key="--listen", found=listen, allowed="host:port")
    return host


def socket_address() -> str:
    """Give the address by which other machines reach this one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: it only chooses an interface
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _key_in(file: Path) -> RunKey:
    if file.exists():
        return RunKey.read(file)
    key = RunKey.new()
    key.write(file)
    return key


def agent(server: str, client: int, key: Path, *, allow_code: bool = False) -> None:
    """Be a client of a live run until it is over.

    Args:
        server: `host:port` at which its driver listens.
        allow_code: run code of packages that are not sfl-sim's own, too.

    Raises ScenarioError if nobody listens there, or it has another key or no use for this client, and EndedEarly.
    """
    host_of(server)
    asyncio.run(Agent(client, own_of, allow_code).serve(f"tcp://{server}", RunKey.read(key)))
