"""Twelve laws that every run keeps (docs/laws.md), each held against what the run has stored.

A law is a function of a `StoredTrial`. It gives None if the trial keeps it, the first `Breach`, or what is `Untold`:
what stored tables cannot say of this trial, once all else has been checked. Its docstring is its statement.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sfl_sim.build.clock import build_clock, server_workers
from sfl_sim.build.method import dealt
from sfl_sim.build.registry import find_method, method_options
from sfl_sim.data.partition import cyclic_clients, label_order
from sfl_sim.engine.experiment import Experiment
from sfl_sim.engine.round_tables import ServerTable, client_table
from sfl_sim.errors import ScenarioError
from sfl_sim.methods.pooled import Pooled
from sfl_sim.metrics.queue import held_idle, queue_length
from sfl_sim.ops import AGGREGATOR, Expect, State, role_of
from sfl_sim.report.load import TABLES, load
from sfl_sim.rng import stream
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.presets import expand
from sfl_sim.scenario.sections import Scenario, StationSection
from sfl_sim.sim.event_clock import EventClock
from sfl_sim.sim.orders import ARRIVAL_DRIVEN, ORDERS
from sfl_sim.sim.station import Job, OrderPolicy, Sorting
from sfl_sim.store import places
from sfl_sim.store.columns import BREAKDOWN, OP_COLUMNS
from sfl_sim.store.reading import matrix
from sfl_sim.studies.retrace import NotRecorded, Recorded, TracedRounds
from sfl_sim.system.cost import MACS, PlainProcessor
from sfl_sim.system.fleet import Fleet, build_fleet
from sfl_sim.system.links import BITS_PER_BYTE, Pattern
from sfl_sim.system.power import read_power
from sfl_sim.training.executors import Timing

SAME = 1e-9
"""Relative difference up to which two numbers are the same: sums of many are rounded."""
ROUNDING = 1e-12
"""Share of the time of a run within which two instants are the same."""
WINDOW = 100
"""Messages over a shared edge that are added up from the start of each of them."""
BATCH = ["round", "client", "step"]
"""Columns that tell a client's mini-batch."""
ANNOUNCED = ("train", "forward", "backward", "differentiate")
"""Kinds of the jobs at the one model which an order ranks them for."""
DRAWN = ["server", "above", "workers", "macs_per_s", "uplink_bps", "downlink_bps", "latency_s"]
"""Columns of servers.parquet that the scenario decides."""
TOTALS = ("bytes_up", "bytes_down", "lost_bytes")
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Marks = NDArray[np.bool_]


class Breach(NamedTuple):
    """The first row that breaks a law: its table, its number in the file from 0, and what is wrong with it."""

    table: str
    row: int
    why: str

    @property
    def file(self) -> str:
        """Name of the table's file."""
        return TABLES[self.table].file


class Untold(NamedTuple):
    """What of a law the stored tables cannot tell."""

    why: str


Finding = Breach | Untold | None


@dataclass(frozen=True)
class StoredTrial:
    """What a run has stored of a variant with a seed.

    Attributes:
        folder: of the run.
        tables: its rows of the run's tables, with their numbers in the files as index; empty where there is no file.
        summary: its part of summary.json.
        scenario: what was asked, without grid.
    """

    folder: Path
    tables: Mapping[str, pd.DataFrame]
    summary: Mapping[str, Any]
    scenario: Scenario

    @property
    def ops(self) -> pd.DataFrame:
        """Its operations."""
        return self.tables["ops"]

    @property
    def rounds(self) -> pd.DataFrame:
        """Its rounds."""
        return self.tables["rounds"]

    @property
    def dropouts(self) -> pd.DataFrame:
        """Its lost operations."""
        return self.tables["dropouts"]

    @cached_property
    def clients(self) -> pd.DataFrame:
        """Its clients by number."""
        return self.tables["clients"].set_index("client", drop=False)

    @cached_property
    def tolerance_s(self) -> float:
        """Seconds within which two instants are the same."""
        return ROUNDING * float(self.rounds["ended_s"].abs().max())

    @cached_property
    def fleet(self) -> Fleet:
        """The fleet that the scenario asks for, drawn again."""
        scenario = self.scenario
        return build_fleet(len(self.clients), scenario.seed, scenario.clients, scenario.server, scenario.servers)

    @cached_property
    def clock(self) -> EventClock:
        """A clock of the scenario that has run nothing, whose servers serve as those of the run did."""
        return build_clock(self.scenario, self.fleet, Timing(), self.counts).events

    @cached_property
    def cyclic(self) -> list[int]:
        """Its clients in cyclic order."""
        n_labels = self.counts.shape[1]
        return cyclic_clients(self.counts, label_order(n_labels, stream(self.scenario.seed, "label order")))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How many samples (C, L) of each label each client holds."""
        return matrix(self.clients["label_samples"])

    @cached_property
    def is_measured(self) -> bool:
        """True if its times were measured in a live run."""
        return not self.tables["steps"].empty

    @cached_property
    def goes_on(self) -> bool:
        """True if local training goes on from one round into the next, so that a mini-batch may have two rounds."""
        rounds = self.rounds
        return "staleness_max" in rounds and bool(rounds["staleness_max"].notna().any())

    @cached_property
    def follows_order(self) -> bool:
        """True if servers serve clients' jobs by `server.order`; others serve as they come."""
        return find_method(self.scenario.method.name).has("follows_order", self.options)

    @cached_property
    def options(self) -> Any:
        """Options of its method, as its class declares them."""
        return method_options(find_method(self.scenario.method.name), self.scenario)

    @cached_property
    def sends_once(self) -> bool:
        """True if the server keeps what clients have sent, and trains on it without another upload."""
        return bool(getattr(self.options, "send_once", False))

    @cached_property
    def at_servers(self) -> pd.DataFrame:
        """Its jobs at servers, in the order of their start."""
        jobs = self.ops[places.at_servers(self.ops["node"])]
        return jobs.sort_values(["node", "started_s", "requested_s", "client"], kind="stable")

    @cached_property
    def _rows_of_stays(self) -> Mapping[int, Ints]:
        return _rows_by_client(self.tables["presence"])

    def stays(self, client: int) -> tuple[Floats, Floats]:
        """Give the begins and ends of the intervals in which a client is present; for ever without a profile."""
        presence = self.tables["presence"]
        if presence.empty:
            return np.array([-inf]), np.array([inf])
        stays = presence.iloc[self._rows_of_stays.get(client, [])]
        return stays["from_s"].to_numpy(dtype=float), stays["until_s"].to_numpy(dtype=float)


def _rows_by_client(rows: pd.DataFrame) -> Mapping[int, Ints]:
    """Give the positions of each client's rows."""
    found: Mapping[Any, Any] = rows.groupby("client").indices
    return found


def _breach(table: str, rows: pd.DataFrame, broken: Any, why: str, **more: Any) -> Breach | None:
    """Give the first of the marked rows, if there is one; `why` names columns, or values of `more`, in braces."""
    marks = np.asarray(broken, dtype=bool)
    if not marks.any():
        return None
    k = int(marks.argmax())
    row = rows.iloc[k]
    about = ", ".join(f"{name} {row[name]}" for name in ("variant", "seed", "round", "node", "kind", *BATCH[1:])
                      if name in row and row[name] != -1)  # fmt: skip
    numbers: dict[str, Any] = {name: np.asarray(values)[k] for name, values in more.items()}
    values = {str(name): value for name, value in row.items()} | numbers
    return Breach(table, int(rows.index[k]), f"{why.format(**values)} ({about})")


def _differ(a: Any, b: Any, tolerance: Any = 0.0) -> Marks:
    """Mark the numbers that are not the same; those that are unknown on either side are not compared."""
    a, b = np.asarray(a, dtype=float), np.asarray(b, dtype=float)
    far = np.abs(a - b) > SAME * np.maximum(np.abs(a), np.abs(b)) + tolerance
    return np.asarray(far | (np.isinf(a) != np.isinf(b)))


def time_never_runs_back(trial: StoredTrial) -> Finding:
    """Time never runs back: an operation is requested, begins and ends in its round; rounds follow one another."""
    ops, rounds, within_s = trial.ops, trial.rounds, trial.tolerance_s
    wrong = rounds["round"] != np.arange(1, len(rounds) + 1)
    if breach := _breach("rounds", rounds, wrong, "rounds are not 1, 2, 3, ..."):
        return breach
    ends_s = rounds.set_index("round")["ended_s"]
    before_s = ends_s.shift(fill_value=0.0)
    last_s, first_s = (ops["round"].map(limits).to_numpy(dtype=float) for limits in (ends_s, before_s))
    simulated_s = float(trial.summary["simulated_s"])
    return (
        _breach("rounds", rounds, ~(rounds["ended_s"] >= rounds["started_s"] - within_s),
                   "ended_s {ended_s:.9g} is before started_s {started_s:.9g}")
        or _breach("rounds", rounds, ~(rounds["started_s"].to_numpy() >= before_s.to_numpy() - within_s),
                   "started_s {started_s:.9g} is before the end of the round before, {s:.9g}", s=before_s)
        or _breach("rounds", rounds.tail(1), _differ(rounds["ended_s"].tail(1), [simulated_s], within_s),
                   "ended_s {ended_s:.9g} is not simulated_s {s:.9g} of summary.json", s=[simulated_s])
        or _breach("ops", ops, ~(ops["started_s"] >= ops["requested_s"] - within_s),
                   "started_s {started_s:.9g} is before requested_s {requested_s:.9g}")
        or _breach("ops", ops, ~(ops["ended_s"] >= ops["started_s"] - within_s),
                   "ended_s {ended_s:.9g} is before started_s {started_s:.9g}")
        or _breach("ops", ops, ~(ops["ended_s"].to_numpy() <= last_s + within_s),
                   "ended_s {ended_s:.9g} is after the end of its round, {s:.9g}", s=last_s)
        or _breach("ops", ops, ~(ops["ended_s"].to_numpy() >= first_s - within_s),
                   "ended_s {ended_s:.9g} is before the end of the round before, {s:.9g}", s=first_s)
    )  # fmt: skip


def cause_before_effect(trial: StoredTrial) -> Finding:
    """Cause before effect: nothing is requested but when something ends, and no stage before the one it needs."""
    ops, within_s = trial.ops, trial.tolerance_s
    is_patient = getattr(trial.options, "patience_s", None) is not None
    instants = {"ops": "ended_s", "rounds": "started_s", "dropouts": "lost_s", "presence": "from_s"}
    known_s = [trial.tables[table][column] for table, column in instants.items() if len(trial.tables[table])]
    causes_s = np.unique(np.concatenate([np.asarray(of_table, dtype=float) for of_table in known_s]))
    causes_s = np.r_[-inf, causes_s[np.isfinite(causes_s)], inf]
    requested_s = ops["requested_s"].to_numpy(dtype=float)
    after = np.searchsorted(causes_s, requested_s).clip(1, len(causes_s) - 1)  # of no number, the last
    apart_s = np.minimum(causes_s[after] - requested_s, requested_s - causes_s[after - 1])
    why = "requested_s {requested_s:.9g} is an instant at which nothing ended"
    if breach := _breach("ops", ops, ~(apart_s <= within_s) & (not (is_patient or trial.is_measured)), why):
        return breach
    if trial.goes_on:
        return Untold("mini-batches of asynchronous methods may have the same numbers")
    batches = ops[(ops["step"] >= 0) & (ops["client"] >= 0)]
    node = batches["node"]
    device, up, down = (places.at(node, *which) for which in ([places.DEVICE], places.SENT, [places.DOWNLINK]))
    server = places.at_servers(node)
    gradients = down & np.asarray(batches["kind"] == "gradients") & ~_lost(trial, batches)
    for cause, before, following, way in (
        ("the client's computing", device, up, "min"),
        ("its upload", up, server, "min"),
        ("its job at the server", server, down, "min"),
        ("its gradients' way down", gradients, device, "max"),
    ):
        ended_s = batches[before].groupby(BATCH)["ended_s"].min()
        by_batch = batches[following].groupby(BATCH)["requested_s"]
        rows = batches.loc[(by_batch.idxmin() if way == "min" else by_batch.idxmax()).sort_values()]
        limit_s = ended_s.reindex(pd.MultiIndex.from_frame(rows[BATCH])).to_numpy(dtype=float)
        why = f"requested_s {{requested_s:.9g}} is before the end of {cause}, {{s:.9g}}"
        if breach := _breach("ops", rows, rows["requested_s"].to_numpy() < limit_s - within_s, why, s=limit_s):
            return breach
    if trial.is_measured:
        return Untold("what each request of a real machine follows")
    return Untold("what is requested when the server's patience ends") if is_patient else None


def _lost(trial: StoredTrial, rows: pd.DataFrame) -> Marks:
    """Mark the operations that were lost."""
    if trial.dropouts.empty:
        return np.zeros(len(rows), dtype=bool)
    which = ["round", "node", "kind", "step"]
    lost = pd.MultiIndex.from_frame(trial.dropouts[[*which, "lost_s"]])
    return np.asarray(pd.MultiIndex.from_frame(rows[[*which, "ended_s"]]).isin(lost))


def _who_was_lost(trial: StoredTrial) -> pd.DataFrame:
    """Give the columns round and client of its lost operations."""
    return trial.dropouts.reindex(columns=BATCH[:2]).astype("int64")


def _reach_s(trial: StoredTrial, rows: pd.DataFrame) -> Floats:
    """Give the latency (N,) that each message may have at most, whichever server or client it comes from or goes to."""
    latency_s, topology, tier = (
        trial.clients["latency_s"],
        trial.fleet.topology,
        next(iter(trial.fleet.tiers.values()), None),
    )
    if topology is not None:
        servers = [str(node) for node in tier.nodes] if tier else [places.SERVER]
        ways = [
            (topology.latency_s(c, None, server), topology.latency_s(None, c, server))
            for c in latency_s.index
            for server in servers
        ]
        latency_s = latency_s + np.reshape(ways, (len(latency_s), -1)).max(axis=1)
    if tier is not None and tier.reach_s is not None:
        latency_s = latency_s + tier.reach_s.max(axis=1)
    reach_s = rows["client"].map(latency_s).to_numpy(dtype=float)
    return reach_s + np.where(places.at(rows["node"], places.PEER), latency_s.max(), 0.0)


def at_a_time(trial: StoredTrial) -> Finding:
    """One thing at a time: a device computes, an uplink sends and a downlink receives no two things at once."""
    ops, within_s = trial.ops, trial.tolerance_s
    rows = ops[places.at(ops["node"], places.DEVICE, *places.LINKS)]
    ended_s, latency_s = rows["ended_s"].to_numpy(), _reach_s(trial, rows)
    until_s = np.where(places.at(rows["node"], places.DEVICE), ended_s, ended_s - latency_s)
    rows = rows.assign(until_s=until_s, what=np.where(rows["node"] == places.PEER, places.UPLINK, rows["node"]))
    rows = rows[rows["until_s"] > rows["started_s"] + within_s]
    rows = rows.sort_values(["what", "client", "started_s"], kind="stable")
    free_s = rows.groupby(["what", "client"], observed=True)["until_s"].cummax().shift()
    follows = (rows[["what", "client"]] == rows[["what", "client"]].shift()).all(axis=1)
    why = "started_s {started_s:.9g} is before the {what} is free, at {s:.9g}"
    return _breach("ops", rows, follows & (rows["started_s"] < free_s - within_s), why, s=free_s)


def servers_serve(trial: StoredTrial) -> Finding:
    """Servers serve: never more jobs than workers, and no job waits at an idle server unless an order holds it."""
    within_s, untold = trial.tolerance_s, None
    for node, jobs in trial.at_servers.groupby("node", observed=True):
        workers, section = server_workers(trial.scenario, str(node)), _section(trial, str(node))
        served = jobs[jobs["ended_s"] > jobs["started_s"] + within_s]
        over = np.searchsorted(np.sort(served["ended_s"]), served["started_s"].to_numpy() + within_s, "right")
        n = np.arange(1, len(served) + 1) - over
        if breach := _breach("ops", served, n > workers, f"{{n}} jobs are in service where {workers:g} may be", n=n):
            return breach
        if trial.is_measured or (trial.follows_order and section.order not in ORDERS):
            untold = Untold(f"how long the order {section.order} may hold a server")
            continue
        held = held_idle(queue_length(jobs))
        held = held[held["ended_s"] - held["started_s"] > within_s]
        begins = np.searchsorted(jobs["started_s"].to_numpy(), held["ended_s"].to_numpy() - within_s)
        upcoming, held = jobs.iloc[begins[begins < len(jobs)]], held[begins < len(jobs)]
        came_late = (upcoming["requested_s"] >= upcoming["started_s"] - within_s).to_numpy()
        if trial.follows_order and section.order not in ARRIVAL_DRIVEN:  # it is held for the job that comes next
            lasted_s = (held["ended_s"] - held["started_s"]).to_numpy()
            may_be = came_late | (lasted_s <= (section.max_wait_s or 0.0) + within_s)
            may_be |= upcoming["round"].isin(trial.dropouts.get("round", ())).to_numpy()
        else:  # for the second of two jobs on a mini-batch
            may_be = came_late & (jobs.shift().loc[upcoming.index, BATCH] == upcoming[BATCH]).all(axis=1).to_numpy()
        why = "jobs waited at the idle server from {s:.9g} to {started_s:.9g}"
        if breach := _breach("ops", upcoming, ~may_be, why, s=held["started_s"]):
            return breach
    return untold


def _section(trial: StoredTrial, node: str) -> StationSection:
    return trial.scenario.servers.get(role_of(node), trial.scenario.server)


def in_order(trial: StoredTrial) -> Finding:
    """Jobs are served in the order that the policy says."""
    untold = None
    if trial.is_measured:
        return Untold("which jobs a real server knew of when it chose")
    for node, jobs in trial.at_servers.groupby("node", observed=True):
        jobs, section = jobs[jobs["client"] >= 0], _section(trial, str(node))
        announced = jobs[jobs["kind"].isin(ANNOUNCED)]
        if trial.follows_order and section.order != "fcfs":
            finding = _by_policy(trial, str(node), announced, section)
        elif trial.follows_order or server_workers(trial.scenario, str(node)) == 1:
            ranked = announced if _turn(announced) == 1 else announced[announced["kind"] == "forward"]
            finding = _by_arrival(trial, ranked if trial.follows_order else jobs)
        else:
            finding = Untold("which of several workers' jobs change the same model")
        if isinstance(finding, Breach):
            return finding
        untold = finding or untold
    return untold


def _turn(jobs: pd.DataFrame) -> int:
    """Give how many jobs of a client in a row an order ranks as one: two where the labels stay with the client."""
    return 2 if {"forward", "backward"} <= set(jobs["kind"]) else 1


def _by_arrival(trial: StoredTrial, jobs: pd.DataFrame) -> Finding:
    """Check that one worker serves jobs as they come; those that are lost while they wait are not served."""
    within_s = trial.tolerance_s
    jobs = jobs[~_lost(trial, jobs)]
    first_s = jobs["requested_s"].cummax().shift()
    client = jobs["client"].where(jobs["requested_s"] < jobs["started_s"] - within_s)
    is_tied = (jobs["requested_s"] == jobs["requested_s"].shift()) & (client < client.shift())
    return _breach("ops", jobs, (jobs["requested_s"] < first_s - within_s) | is_tied,
                   "requested_s {requested_s:.9g} is served after a job that came later", s=first_s)  # fmt: skip


def _by_policy(trial: StoredTrial, node: str, jobs: pd.DataFrame, section: StationSection) -> Finding:
    """Ask the policy again for each choice, with the jobs that waited then."""
    if section.order not in ORDERS:
        return Untold(f"what the order {section.order} says")
    lost = set(trial.dropouts.get("round", ()))
    at = next(server for server in trial.clock.queues if str(server) == node)
    rounds: Mapping[Any, pd.DataFrame] = dict(iter(jobs.groupby("round")))
    for number in sorted(rounds.keys() - lost):
        of_round = rounds[number]
        n_jobs = of_round["client"].value_counts()
        announced = {client: int(n_jobs[client]) for client in trial.cyclic if client in n_jobs.index}
        policy, left = trial.clock.policy(Expect(State("model"), announced, _turn(jobs), at), number)
        chosen = _chosen(policy, of_round, left, trial.tolerance_s)
        why = f"the order {section.order} serves {{s}} first"
        if breach := _breach("ops", of_round, of_round["client"].to_numpy() != chosen, why, s=chosen):
            return breach
    return Untold("rounds that have lost a client") if lost else None


def _chosen(policy: OrderPolicy, jobs: pd.DataFrame, left: dict[int, int], within_s: float) -> list[int]:
    """Ask a policy, at the start of each job, for the client that it serves; -1 for nobody. It ends at a difference.

    Args:
        jobs: of a round at a server, in the order of their start.
        left: jobs of each client that are left, which the policy follows.
    """
    columns = (jobs[name].tolist() for name in ("requested_s", "client", "started_s", "ended_s"))
    served, chosen = list(zip(*columns, strict=True)), [-1] * len(jobs)
    coming, waiting, free_s = sorted(served, reverse=True), dict[int, Job](), -inf
    for k, (requested_s, client, started_s, ended_s) in enumerate(served):
        first_s = min(
            [requested_s, *(came_s for came_s, *_ in coming[-1:]), *(job.arrived_s for job in waiting.values())]
        )
        patient_from_s, choice = min(max(free_s, first_s), started_s), None
        for asked_s in dict.fromkeys([patient_from_s + within_s, started_s + 2 * within_s]):
            while coming and coming[-1][0] <= asked_s:
                came_s, owner, began_s, over_s = coming.pop()
                waiting[owner] = Job(owner, None, came_s, float(f"{over_s - began_s:.9g}"))
                if isinstance(policy, Sorting):
                    policy.add(waiting[owner])
            if waiting and not isinstance(choice, Job):
                choice = policy(waiting, asked_s)
        chosen[k] = choice.client if isinstance(choice, Job) else -1
        if chosen[k] != client:
            break
        del waiting[client]
        left[client] -= 1
        free_s = ended_s
    return chosen


def jobs_add_up(trial: StoredTrial) -> Finding:
    """Jobs add up: what a client brings is served once, dropped with its client, or under way when the run ends."""
    ops, dropouts, rounds = trial.ops, trial.dropouts, trial.rounds
    if not dropouts.empty:
        which = ["round", "node", "kind", "step"]
        at_server = places.at_servers(dropouts["node"])
        ended = pd.MultiIndex.from_frame(ops[[*which, "ended_s"]])
        brought = pd.MultiIndex.from_frame(ops[[*which, "client"]])
        known = np.where(at_server, pd.MultiIndex.from_frame(dropouts[[*which, "client"]]).isin(brought),
                         pd.MultiIndex.from_frame(dropouts[[*which, "lost_s"]]).isin(ended))  # fmt: skip
        if breach := _breach("dropouts", dropouts, ~known, "no operation has ended so at lost_s {lost_s:.9g}"):
            return breach
        took_part = dropouts.merge(trial.tables["participants"], on=["round", "client"])
        n_lost = rounds["round"].map(took_part.groupby("round")["client"].nunique()).fillna(0)
        if breach := _breach("rounds", rounds, _differ(n_lost, rounds["lost"]),
                             "lost {lost:g} clients where dropouts.parquet names {n:g}", n=n_lost):  # fmt: skip
            return breach
    if breach := _servers_add_up(trial):
        return breach
    if trial.goes_on:
        return Untold("jobs of asynchronous methods that are under way when the run ends are not stored")
    jobs = ops[places.at_servers(ops["node"]) & (ops["client"] >= 0) & (ops["step"] >= 0)]
    uploads = ops[places.at(ops["node"], places.UPLINK) & (ops["step"] >= 0)]
    if breach := _breach("ops", jobs, jobs.duplicated(["node", "kind", *BATCH]), "the job was served before"):
        return breach
    if trial.sends_once:
        return Untold("which upload of an earlier epoch serves a job")
    if jobs.empty:
        return Untold("which of the jobs that belong to no client serves an upload") if len(uploads) else None
    brought, served = (pd.MultiIndex.from_frame(rows[BATCH]) for rows in (uploads, jobs))
    of_lost = pd.MultiIndex.from_frame(uploads[BATCH[:2]]).isin(pd.MultiIndex.from_frame(_who_was_lost(trial)))
    return _breach("ops", jobs, ~served.isin(brought), "a job without an upload") or _breach(
        "ops", uploads, ~brought.isin(served) & ~of_lost, "an upload that no job serves"
    )


def _servers_add_up(trial: StoredTrial) -> Breach | None:
    """Check the sums of servers.parquet."""
    servers, jobs = trial.tables["servers"], trial.at_servers
    if servers.empty:
        return None
    of_clients = jobs[jobs["client"] >= 0].assign(waited_s=lambda rows: rows["started_s"] - rows["requested_s"])
    by_node = of_clients.groupby(of_clients["node"].astype(str))
    busy_s = (jobs["ended_s"] - jobs["started_s"]).groupby(jobs["node"].astype(str)).sum()
    sums = {"jobs": by_node.size(), "clients": by_node["client"].nunique(), "busy_s": busy_s}
    for column, by_name in {**sums, "waited_s": by_node["waited_s"].mean()}.items():
        by_row = servers["server"].map(by_name)
        by_row = by_row.fillna(0) if column in sums else by_row
        why = f"{column} is {{{column}:.9g}} where ops.parquet has {{s:.9g}}"
        if breach := _breach("servers", servers, _differ(by_row, servers[column], trial.tolerance_s), why, s=by_row):
            return breach
    return None


def bytes_add_up(trial: StoredTrial) -> Finding:
    """Bytes add up: those of operations are those of rounds, and those of rounds are those of the summary."""
    ops, rounds = trial.ops, trial.rounds
    ways = {"bytes_up": places.SENT, "bytes_down": (places.DOWNLINK,), "bytes_backbone": (places.BACKBONE,)}
    for column, nodes in ways.items():
        if column not in rounds or rounds[column].isna().all():
            continue
        moved = ops[places.at(ops["node"], *nodes)].groupby("round")["bytes"].sum()
        moved = rounds["round"].map(moved).fillna(0)
        why = f"{column} {{{column}:.0f}}, of its operations {{s:.0f}}"
        if breach := _breach("rounds", rounds, moved != rounds[column], why, s=moved):
            return breach
    return _sums(trial, [(column, rounds[column].sum()) for column in TOTALS if column in rounds])


def _sums(trial: StoredTrial, sums: Iterable[tuple[str, float]]) -> Breach | None:
    """Compare figures of the summary with sums over rounds."""
    for column, total in sums:
        stored = trial.summary.get(column)
        if stored is not None and _differ(stored, total, trial.tolerance_s):
            return Breach("summary", trial.summary["row"], f"{column} is {stored:.9g}, summed up {total:.9g}")
    return None


def rates_hold(trial: StoredTrial) -> Finding:
    """Rates hold: they are those that the scenario draws, computing takes MACs over them, and no link carries more."""
    if trial.is_measured:
        return Untold("what a real link allowed")
    if breach := _as_drawn(trial) or _computing_takes_its_time(trial):
        return breach
    ops, overhead = trial.ops, trial.fleet.overhead
    takes_time = trial.scenario.server.include_model_exchange | (ops["ended_s"] > ops["started_s"])
    rows = ops[places.at(ops["node"], *places.LINKS) & takes_time]
    size, lost = rows["bytes"].to_numpy(dtype=float), _lost(trial, rows)
    if overhead is not None:
        size = size * (1 + overhead.share) + np.where((size > 0) & ~lost, overhead.message_bytes, 0)
    latency_s = rows["client"].map(trial.clients["latency_s"]).to_numpy(dtype=float)
    until_s = rows["ended_s"].to_numpy() - np.where(lost, 0.0, latency_s)
    rows = rows.assign(bits=BITS_PER_BYTE * size, until_s=np.maximum(until_s, rows["started_s"]))
    room, is_down = np.zeros(len(rows)), places.at(rows["node"], places.DOWNLINK)
    for client, own in _rows_by_client(rows).items():
        for down in (True, False):
            of_link = own[is_down[own] == down]
            room[of_link] = _room_bits(trial, client, down, rows.iloc[of_link])
    why = "{bits:.9g} bits from {started_s:.9g} to {until_s:.9g} s, where the link carries {s:.9g}"
    if breach := _breach("ops", rows, rows["bits"].to_numpy() > room * (1 + SAME) + SAME, why, s=room):
        return breach
    of_servers = Untold("which server's link a message between servers takes") if trial.fleet.tiers else None
    return _edges_carry(trial, rows) or of_servers


def _as_drawn(trial: StoredTrial) -> Breach | None:
    """Compare the columns of clients and servers that come from the fleet with the fleet that is drawn again."""
    fleet = trial.fleet
    drawn = {"clients": client_table(fleet, trial.counts, ()).drop(columns=["samples", "label_samples", "cut"]),
             "servers": ServerTable(fleet, trial.clock.queues).table()[DRAWN]}  # fmt: skip
    for name, table in drawn.items():
        stored = trial.tables[name]
        for column in table if len(stored) else ():
            a, b = stored[column].to_numpy(), table[column].to_numpy()
            is_text = not pd.api.types.is_numeric_dtype(table[column])
            same = a == b if is_text else np.isclose(a.astype(float), b.astype(float), SAME, 0, equal_nan=True)
            why = f"{column} is {{{column}}} where {{drawn}} is drawn"
            if breach := _breach(name, stored, ~same, why, drawn=b):
                return breach
    return None


def _computing_takes_its_time(trial: StoredTrial) -> Breach | None:
    """Check that MACs take the seconds that a processor says which asks for nothing else."""
    fleet, ops, prices = trial.fleet, trial.ops, trial.clock.prices
    rates = trial.clients["macs_per_s"] / trial.clients["training_factor"]
    is_plain = fleet.cost == MACS and fleet.conditions is None and not fleet.sample_s
    rate = ops["client"].where((ops["node"] == places.DEVICE) & is_plain).map(rates).to_numpy(dtype=float, copy=True)
    for server in [*trial.clock.queues, *([] if fleet.tiers else [AGGREGATOR])]:  # beside servers of a tier, at theirs
        processor = prices.nodes[server]
        if isinstance(processor, PlainProcessor) and prices.presence_of(server) is None:
            rate[ops["node"] == str(server)] = processor.macs_per_s
    ideal_s = ops["macs"].to_numpy() / rate
    lasts_s, within_s = ops["ended_s"] - ops["started_s"], trial.tolerance_s  # in setup and finish all are present
    wrong = _differ(_present_s(trial, ops), ideal_s, within_s) & _differ(lasts_s, ideal_s, within_s)
    return _breach("ops", ops, wrong, "{macs:.9g} MACs take {s:.9g} s at its node's rate", s=ideal_s)


def _room_bits(trial: StoredTrial, client: int, is_down: bool, rows: pd.DataFrame) -> Floats:
    """Give the bits (N,) that a client's link can carry during each message, while the client is present."""
    about: Any = trial.clients.loc[client]
    links = trial.fleet.downlinks if is_down else trial.fleet.uplinks
    pattern = None if links.patterns is None else links.patterns[client]
    mean_bps, phase_s = float(about["downlink_bps" if is_down else "uplink_bps"]), about["trace_phase_s"]
    started_s, until_s = (rows[name].to_numpy(dtype=float) for name in ("started_s", "until_s"))
    from_s, to_s = trial.stays(client)
    aside = rows["round"].isin([1, trial.rounds["round"].max()]).to_numpy()  # in setup and finish all are present

    def passed(at_s: Floats) -> Floats:
        if pattern is None:
            return np.nan_to_num(at_s) * mean_bps
        return _bits_by(pattern, at_s + float(phase_s)) * (mean_bps / pattern.mean_bps)

    within_s = trial.tolerance_s
    whole = passed(until_s + within_s) - passed(started_s - within_s)
    if len(from_s) == 1 and from_s[0] == -inf:
        return whole
    begin = np.maximum(started_s[:, None] - within_s, from_s)
    end = np.minimum(until_s[:, None] + within_s, to_s)
    there = (passed(np.maximum(begin, end)) - passed(begin)).sum(axis=1)
    return np.where(aside, whole, there)


def _bits_by(pattern: Pattern, at_s: Floats) -> Floats:
    """Give the bits that a pattern lets pass from time 0 until instants of any shape."""
    periods = np.floor(at_s / pattern.period_s)
    within = np.interp(at_s - periods * pattern.period_s, pattern.times_s, pattern.bits_by)
    return np.asarray(periods * pattern.bits_by[-1] + within)


def _edges_carry(trial: StoredTrial, rows: pd.DataFrame) -> Finding:
    """Check that from the start of any message to the end of one of those that follow, an edge carries what it can."""
    topology = trial.fleet.topology
    if topology is None:
        return None
    if trial.fleet.tiers:
        return Untold("which server's edges a message takes")
    up, down = (places.at(rows["node"], *which) for which in ([places.UPLINK], [places.DOWNLINK]))
    paths = {(client, is_up): topology.path(client if is_up else None, None if is_up else client)
             for client in rows["client"].unique().tolist() for is_up in (True, False)}  # fmt: skip
    taken = [paths[pair] for pair in zip(rows["client"].tolist(), up.tolist(), strict=True)]
    over = pd.Series(taken, rows.index, dtype=object)[up | down].explode().dropna()
    for edge in over.unique().tolist():
        messages = rows.loc[over.index[over == edge]].sort_values("started_s", kind="stable")
        started_s, until_s, bits = (messages[name].to_numpy(dtype=float) for name in ("started_s", "until_s", "bits"))
        capacity_bps = topology.capacity_bps[edge]
        for k in range(len(messages)):
            by_end = k + np.argsort(until_s[k : k + WINDOW])
            carried = bits[by_end].cumsum()
            room = capacity_bps * (until_s[by_end] - started_s[k] + 2 * trial.tolerance_s) * (1 + SAME)
            if (carried > room).any():
                names, last = " -> ".join(topology.edges[edge]), int((carried > room).argmax())
                when = f"from {started_s[k]:.9g} to {until_s[by_end[last]]:.9g} s"
                why = f"{when}, {carried[last]:.9g} bits pass {names}, which carries {room[last]:.9g}"
                return Breach("ops", int(messages.index[k]), why)
    return None


def samples_are_trained(trial: StoredTrial) -> Finding:
    """Samples are trained: in every round each participant computes on all that it was dealt, less what was lost."""
    scenario, clients = trial.scenario, trial.clients
    held, n_by_label = trial.tables["clients"], trial.counts.sum(axis=1)
    why = "samples {samples} are not the {n} of label_samples"
    if breach := _breach("clients", held, held["samples"] != n_by_label, why, n=n_by_label):
        return breach
    kind = find_method(scenario.method.name)
    if trial.goes_on:
        return Untold("local training goes on from one round into the next")
    if trial.sends_once or issubclass(kind, Pooled) or getattr(kind, "equal_steps", False):
        return Untold(f"how many samples {scenario.method.name} asks of a client")
    data = dealt(scenario, [np.arange(n) for n in clients["samples"]], trial.fleet)
    ops = trial.ops[places.at(trial.ops["node"], places.DEVICE) & (trial.ops["step"] >= 0)]
    ops = ops[ops["kind"].isin(["forward", "train"])].drop_duplicates(BATCH)
    macs = ops.groupby(["round", "client"])["macs"].agg(["sum", "max"])
    took_part = trial.tables["participants"]
    keys, owners = pd.MultiIndex.from_frame(took_part[BATCH[:2]]), took_part["client"].tolist()
    of_all = [
        data.samples(client) * (data.passes(client) if scenario.train.batches == "full" else 1) for client in owners
    ]
    largest = np.minimum(of_all, [data.size(client) for client in owners])
    shares = ops["macs"] / ops.groupby("client")["macs"].transform("max") * ops["client"].map(data.size)
    if scenario.data.name in ("hf", None) and _differ(shares, shares.round()).any():
        return Untold("to which lengths its mini-batches of sequences are padded")
    trained = (macs["sum"] / macs["max"]).reindex(keys).fillna(0).to_numpy() * largest
    n_dealt = np.array([data.seen(client) for client in owners])
    lost = keys.isin(pd.MultiIndex.from_frame(_who_was_lost(trial)))
    sample_macs = np.where(lost, np.nan, macs["max"].reindex(keys).to_numpy() / largest)
    if breach := _cuts_have_their_work(trial, sample_macs):
        return breach
    why = "{s:g} samples were trained, {n} were dealt"
    return _breach("participants", took_part, _differ(trained, n_dealt) & ~lost, why, s=trained, n=n_dealt)


def _cuts_have_their_work(trial: StoredTrial, sample_macs: Floats) -> Breach | None:
    """Check that participants compute, for each sample, the layers before the cut: no less, and no more without heads.

    Args:
        sample_macs: (N,) MACs of the forward pass of a sample by participant; NaN if it has computed nothing.
    """
    kind, took_part = find_method(trial.scenario.method.name), trial.tables["participants"]
    cuts = took_part["cut"].astype(float)
    asked = took_part["client"].map(trial.clients["cut"]).astype(float).where(~took_part["client"].duplicated())
    if breach := _breach("participants", took_part, _differ(cuts, asked), "cut {cut} is not that of its client"):
        return breach
    least = cuts.map(trial.tables["layers"].set_index("layer")["macs"].cumsum()).fillna(inf * cuts)
    is_bare = kind.has("sends_gradients", trial.options) and not kind.has_exits and trial.scenario.lora is None
    wrong = (sample_macs < least * (1 - SAME)) | (is_bare & _differ(sample_macs, least))
    why = "a sample takes {s:.9g} MACs where the layers before the cut have {least:.9g}"
    return _breach("participants", took_part, wrong, why, s=sample_macs, least=least)


def parts_add_up(trial: StoredTrial) -> Finding:
    """Parts add up: those of a round are its length, and no time is lost between rounds but that without a client."""
    rounds, within_s = trial.rounds, trial.tolerance_s
    parts = rounds[[f"{part}_s" for part in BREAKDOWN]]
    lasts_s = rounds["ended_s"] - rounds["started_s"]
    idle_s = (rounds["started_s"] - rounds["ended_s"].shift(fill_value=0.0)).clip(lower=0.0)
    waits = trial.is_measured or trial.scenario.clients.availability is not None or bool(trial.scenario.servers)
    return (
        _breach("rounds", rounds, parts.min(axis=1) < -within_s, "a part is below 0")
        or _breach("rounds", rounds, _differ(parts.sum(axis=1), lasts_s, within_s),
                   "its parts are {p:.9g} s, its length is {s:.9g} s", p=parts.sum(axis=1), s=lasts_s)
        or _breach("rounds", rounds, (idle_s > within_s) & (not waits), "{s:.9g} s pass before it", s=idle_s)
        or _sums(trial, [("idle_s", float(idle_s.sum()))])
        or (Untold("what passes between two rounds of a real run") if trial.is_measured else None)
    )  # fmt: skip


def energy_is_power_times_time(trial: StoredTrial) -> Finding:
    """Energy is power times time, and a joule for every bit where the radio takes it; clients' sums are the run's."""
    section, ops, clients = trial.scenario.clients.power, trial.ops, trial.clients
    if section is None:
        return None
    power = read_power(len(clients), section)
    owner, node = ops["client"].to_numpy(), ops["node"]
    computes, sends, receives = (places.at(node, *which) for which in ([places.DEVICE], places.SENT, places.RECEIVED))
    lasts_s = (ops["ended_s"] - ops["started_s"]).to_numpy(dtype=float)
    present_s = _present_s(trial, ops)

    def joule_of(seconds: Floats) -> Floats:
        watts = sum(which * np.asarray(w)[owner] for which, w in
                    ((computes, power.compute_w), (sends, power.uplink_w), (receives, power.downlink_w)))  # fmt: skip
        per_bit = sum(which * np.asarray(j)[owner] for which, j in
                      ((sends, power.uplink_joule_per_bit), (receives, power.downlink_joule_per_bit)))  # fmt: skip
        return np.asarray(watts * seconds + per_bit * np.where(seconds > 0, BITS_PER_BYTE * ops["bytes"].to_numpy(), 0))

    joule, most_w = joule_of(present_s), max(map(max, (power.compute_w, power.uplink_w, power.downlink_w)))
    taken = ops["joule"].fillna(inf)
    wrong = _differ(taken, joule, most_w * trial.tolerance_s)
    aside = ops["round"].isin([1, trial.rounds["round"].max()]).to_numpy()  # in setup and finish all are present
    wrong &= ~(aside & ~_differ(taken, joule_of(lasts_s), most_w * trial.tolerance_s))
    if breach := _breach("ops", ops, wrong, "joule {joule:.9g} where power times time is {s:.9g}", s=joule):
        return breach
    by_client = clients["client"].map(ops.groupby("client")["joule"].sum()).fillna(0).to_numpy(dtype=float)
    idle_joule = np.asarray(power.idle_w) * float(trial.rounds["ended_s"].max())
    stored = clients["joule"].to_numpy(dtype=float)
    most = np.where(trial.goes_on, inf, by_client + idle_joule)  # what is under way at the end is not stored
    wrong = ~((stored >= by_client * (1 - SAME) - SAME) & (stored <= most * (1 + SAME) + SAME))
    why = "joule {joule:.9g} where its operations take {s:.9g} and waiting {i:.9g} at most"
    if breach := _breach("clients", trial.tables["clients"], wrong, why, s=by_client, i=idle_joule):
        return breach
    of_rounds = (trial.rounds["client_joule"] * trial.rounds["participants"]).sum()
    return _sums(trial, [("joule", float(stored.sum())), ("joule", float(of_rounds))])


def _present_s(trial: StoredTrial, rows: pd.DataFrame) -> Floats:
    """Give the seconds (N,) of each operation in which its client is present."""
    seconds = np.array(rows["ended_s"] - rows["started_s"], dtype=float)
    for client, own in _rows_by_client(rows).items() if trial.scenario.clients.availability else ():
        from_s, until_s = trial.stays(client)
        begin = np.maximum(rows["started_s"].to_numpy()[own, None], from_s)
        end = np.minimum(rows["ended_s"].to_numpy()[own, None], until_s)
        seconds[own] = (end - begin).clip(min=0).sum(axis=1)
    return seconds


def walked_again(trial: StoredTrial) -> Finding:
    """Walked again by the clock alone, the timeline is the same."""
    if trial.is_measured:
        return Untold("what a real network will do again")
    recorded, is_trained = Recorded(trial.folder, trial.summary), trial.summary["weights_digest"] is not None
    numbers = iter(recorded.reads.get("value", ()))

    def read(_: bytes) -> float:
        if (number := next(numbers, None)) is None:
            raise NotRecorded
        return float(number)

    traced = TracedRounds(trial.scenario, recorded, read) if is_trained else None
    experiment = traced.experiment if traced else Experiment(trial.scenario, None)
    try:
        walked = [round.ops for round, _ in zip(experiment.rounds(), range(len(trial.rounds)), strict=False)]
    except NotRecorded:
        return Untold("numbers of training that its flow asks for, which the run has not stored")
    again, ops = pd.DataFrame(np.concatenate(walked)), trial.ops
    n = min(len(ops), len(again))
    wrong = np.arange(len(ops)) >= n
    for name in OP_COLUMNS:
        stored = ops[name].astype(str).str.encode("ascii") if name in ("node", "kind") else ops[name]
        wrong[:n] |= stored.to_numpy()[:n] != again[name].to_numpy()[:n]
    if breach := _breach("ops", ops, wrong, "another operation, or another time, stands here"):
        return breach
    if len(again) > n or experiment.timeline_digest != trial.summary["timeline_digest"]:
        why = f"timeline_digest is not that of the {len(again):,} operations that were walked again"
        return Breach("summary", trial.summary["row"], why)
    return None


class Law(NamedTuple):
    """A law: its number from 1, its statement, and the function that checks it."""

    number: int
    statement: str
    check: Callable[[StoredTrial], Finding]


LAWS = [
    Law(number, str(inspect.getdoc(check)), check)
    for number, check in enumerate(
        (
            time_never_runs_back, cause_before_effect, at_a_time, servers_serve, in_order, jobs_add_up,
            bytes_add_up, rates_hold, samples_are_trained, parts_add_up, energy_is_power_times_time, walked_again,
        ),
        start=1,
    )
]  # fmt: skip
READ = ("ops", "rounds", "clients", "layers", "participants", "presence", "dropouts", "servers", "steps")
"""Tables that the laws read."""


def trials_of(folder: Path) -> list[StoredTrial]:
    """Return what a run has stored of each variant and seed that has finished a round.

    Raises ScenarioError for a folder that is no run, a scenario that this version cannot read, or rows of a client that
    there is not.
    """
    run = load(folder)
    variants = parse(run.scenario).variants
    scenarios = {(variant.name, variant.scenario.seed): expand(variant.scenario) for variant in variants}
    tables = {name: run.rows(name) for name in READ}

    def of_trial(rows: pd.DataFrame, name: str, seed: int) -> pd.DataFrame:
        return rows[(rows["variant"] == name) & (rows["seed"] == seed)] if len(rows) else rows

    return [
        StoredTrial(
            folder, _of_its_clients({table: of_trial(rows, *trial) for table, rows in tables.items()}),
            {**summary, "row": row}, scenarios[trial],
        )
        for row, summary in enumerate(run.about["variants"])
        if (trial := (summary["name"], summary["seed"])) in scenarios
    ]  # fmt: skip


def _of_its_clients(tables: Mapping[str, pd.DataFrame]) -> Mapping[str, pd.DataFrame]:
    """Give the tables back. Raises ScenarioError unless the clients are 0, 1, 2, ..., and all rows are theirs."""
    clients = tables["clients"]
    n = len(clients)
    for name, rows in tables.items():
        if "client" not in rows:
            continue
        wrong = rows["client"] != np.arange(n) if name == "clients" else ~rows["client"].between(-1, n - 1)
        if wrong.any():
            row = rows[wrong].iloc[0]
            problem = f"row {row.name} is of a client that there is not, or that has another row"
            raise ScenarioError(problem, key="client", found=int(row["client"]), file=TABLES[name].file)
    return tables


def held_against(
    trials: Iterable[StoredTrial], again: bool = False
) -> Iterator[tuple[Law, list[tuple[StoredTrial, Finding]]]]:
    """Generate each law, with what it says of every trial. Without `again`, the timeline is not walked again."""
    trials = list(trials)
    for law in LAWS if again else LAWS[:-1]:
        yield law, [(trial, law.check(trial)) for trial in trials]
