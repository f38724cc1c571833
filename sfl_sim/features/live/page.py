"""The page that lays a live run beside a simulated one: rounds, operations, waiting, order, bytes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
from markupsafe import Markup

from sfl_sim.errors import ScenarioError
from sfl_sim.metrics.agreement import FIRST, operations_beside, rounds_beside, same_places, spread
from sfl_sim.report.about import setup_in_words
from sfl_sim.report.display import capitalised, data_size, duration, percent, plural
from sfl_sim.report.frames import merge
from sfl_sim.report.html_page import write_page
from sfl_sim.report.lead import Sentence
from sfl_sim.report.load import load_unchanged
from sfl_sim.report.pages.one_round import OneRound, gantt
from sfl_sim.report.panel import Cell, Panel, Table
from sfl_sim.report.terminal import in_terminal
from sfl_sim.store.reading import read_table
from sfl_sim.store.schema import tables

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Group

    from sfl_sim.report.frames import Frames
    from sfl_sim.report.load import Run

LOOPBACK = (
    "All nodes were processes of one machine, which seemed to be the scenario's devices and links: that shows "
    "queueing, overlap, serialisation and overheads; it says nothing on real devices and radios."
)
BY_KERNEL = {
    "netns": " The kernel carried messages over links of the scenario's rates.",
    "netns without latency": " The kernel carried messages over links of the scenario's rates, without their latency.",
}
"""What is added for links that nodes have not emulated by sleeping."""
COLUMNS = ["round", "node", "kind", "client", "requested_s", "started_s", "ended_s", "macs", "bytes"]


def write_live(simulated: Path, live: Path, out: Path, recorded: Path | None = None) -> Path:
    """Write the page on a simulated run and a live one to the file `out` and return its path.

    Args:
        recorded: a simulated run that has served clients in the sequence of the live one; None: there is none.

    Raises:
        ScenarioError: the second is no live run, they have not one variant each, or the page cannot be written.
    """
    found = _laid_beside(simulated, live, recorded)
    runs = found.frames.runs
    return write_page(
        out, "live", title=found.frames.title, kind="simulated beside measured", headlines=found.headlines(),
        about=f"{found.measured.method}, {plural(len(found.nodes) - 1, 'client')}",
        setup=setup_in_words(list(runs[0].settings.values())),
        panels=[found.rounds_panel(), found.gantt_panel(), found.operations_panel(), found.clients_panel(),
                found.bytes_panel(), found.nodes_panel()],
        runs=runs,
    )  # fmt: skip


def live_in_terminal(simulated: Path, live: Path, recorded: Path | None = None) -> Group:
    """Say what the page says, and tabulate the rounds; errors as of `write_live`."""
    found = _laid_beside(simulated, live, recorded)
    return in_terminal(found.headlines(), found.rounds_panel().tables[0])


def _laid_beside(simulated: Path, live: Path, recorded: Path | None) -> _LiveAndSimulated:
    runs = [load_unchanged(live), load_unchanged(simulated)]
    if not (live / "steps.parquet").exists():
        raise ScenarioError("is no live run (sfl-sim live)", key="compare", found=str(live))
    frames = merge(runs)
    if len(frames.variants) != 2 or frames.summary["seed"].nunique() != 1:
        raise ScenarioError(
            "compares one variant with one seed", key="compare", found=f"{len(frames.variants)} variants"
        )
    return _LiveAndSimulated(frames, live, load_unchanged(recorded) if recorded else None)


class _LiveAndSimulated:
    def __init__(self, frames: Frames, live: Path, recorded: Run | None) -> None:
        self.frames = frames
        self.recorded = recorded
        self.measured, self.simulated = frames.variants
        self.steps, self.nodes = (read_table(live, tables("run")[name]) for name in ("steps", "nodes"))
        self.rounds = rounds_beside(*(variant.first_seed(frames.rounds) for variant in frames.variants))
        self.late = self.rounds[self.rounds["round"] >= FIRST]
        measured, simulated = (variant.rows("ops", COLUMNS) for variant in frames.variants)
        self.order = same_places(measured, simulated)
        self.ops = measured[measured["round"] >= FIRST], simulated[simulated["round"] >= FIRST]

    def headlines(self) -> list[Sentence]:
        """Say how rounds agree, whether the order and the weights do, and what that can show."""
        late = self.late if len(self.late) else self.rounds
        ratios, spreads = late["ratio"], spread(late["measured_s"])
        which = f"Rounds {late['round'].min()} to {late['round'].max()} take" if len(late) > 1 else "A round takes"
        within = f" ({ratios.min():.2f} to {ratios.max():.2f})" if len(late) > 1 else ""
        told = f"; measured rounds spread by {percent(spreads, 1)}" if spreads == spreads else ""
        mean = late["measured_s"].sum() / late["simulated_s"].sum()
        text = Markup("{} {:.2f} times as long as simulated{}{}.").format(which, mean, within, told)
        sentences = [Sentence(text, {"ratio": mean, "ratios": list(ratios), "spread": spreads}), self._on_weights()]
        if self.nodes["stretched"].notna().any():
            links = next(iter(self.nodes["links"].dropna() if "links" in self.nodes else ()), "sleep")
            carried = Markup(LOOPBACK + BY_KERNEL.get(links, ""))
            sentences.append(Sentence(carried, {"stretched": True, "links": links}))
        return sentences

    def _on_weights(self) -> Sentence:
        share = self.order["share"].mean()
        order = (
            "" if self.order.empty
            else "The server serves clients in the same sequence, and " if share == 1
            else f"The server serves {percent(share, 0)} of the jobs at the same place of the sequence, and "
        )  # fmt: skip
        mine, other = self.frames.summary["weights_digest"]
        where = ""
        if self.recorded:
            other, where = self.recorded.summary["weights_digest"].iloc[0], ", in the sequence of the live run,"
        equal = None if pd.isna(other) else bool(mine == other)
        weights = {
            None: "nothing was trained in the simulation, so that weights are not compared.",
            True: f"the simulated weights{where} are equal to the bit.",
            False: f"the simulated weights{where} are not equal.",
        }
        return Sentence(capitalised(Markup(order + weights[equal])), {"same place": share, "equal weights": equal})

    def rounds_panel(self) -> Panel:
        """Measured beside simulated rounds."""
        order = self.order.set_index("round")["share"]
        rows = [
            [
                Cell(str(row["round"])), Cell(f"{row['measured_s']:.4g} s"), Cell(f"{row['simulated_s']:.4g} s"),
                Cell(f"{row['ratio']:.3f}"),
                Cell("–" if (share := order.get(row["round"])) is None else percent(share, 0)),
            ]
            for row in self.rounds.to_dict("records")
        ]  # fmt: skip
        table = Table(["Round", "Measured", "Simulated", "Ratio", "Jobs at the same place"], rows)
        return Panel("Rounds", "The first round is left out of what is said above.", tables=[table])

    def gantt_panel(self) -> Panel:
        """Both charts on one axis."""
        views = OneRound(self.frames).views
        until_s = max(view.duration_s for view in views)
        names = {self.measured.label: "Measured", self.simulated.label: "Simulated"}
        charts = [(names[view.variant.label], partial(gantt, self.frames, view, until_s)) for view in views]
        caption = (
            f"Round {self.frames.typical_round}, operation by operation, on one axis. Each row is a client, the top "
            "rows are the server's workers; a job there has its client's colour. The dark line is the critical path."
        )
        return Panel("One round, measured and simulated", caption, charts)

    def operations_panel(self) -> Panel:
        """Means by place and kind."""
        found = operations_beside(*self.ops, by=["node", "kind"])
        caption = (
            "Means from round 2 on. A device has one rate for all its steps: where forward passes are slower than "
            "simulated and backward passes faster, it fits their sum."
        )
        names = found["node"].astype(str) + " " + found["kind"].astype(str)
        return Panel("Operations by kind", caption, tables=[_beside(found, names, "Operation")])

    def clients_panel(self) -> Panel:
        """Means by client and place."""
        found = operations_beside(*self.ops, by=["client", "node"])
        found = found[found["client"] >= 0]
        names = "client " + found["client"].astype(str) + ", " + found["node"].astype(str)
        table = _beside(found, names, "Client, place")
        return Panel("Operations by client", "Means from round 2 on, by client and place.", tables=[table])

    def bytes_panel(self) -> Panel:
        """Priced and moved bytes of messages."""
        sent = self.steps[self.steps["moved_bytes"] > 0]
        means = sent.groupby(["node", "kind"])[["size_bytes", "moved_bytes"]].mean().reset_index()
        rows = [
            [
                Cell(f"{row['node']} {row['kind']}"), Cell(data_size(row["size_bytes"])),
                Cell(data_size(row["moved_bytes"])), Cell(f"{row['moved_bytes'] - row['size_bytes']:.0f} B"),
            ]
            for row in means.to_dict("records")
        ]  # fmt: skip
        table = Table(["Message", "Priced", "Moved", "Framing"], rows)
        return Panel("Bytes of a message", "What the simulation prices, and what crossed the link.", tables=[table])

    def nodes_panel(self) -> Panel:
        """What is known of the nodes."""
        nodes = self.nodes.to_dict("records")
        rows = [
            [
                Cell(row["node"] if row["node"] == "server" else f"client {row['node']}"),
                Cell(f"{1000 * row['offset_s']:.2f} ms", f"± {1000 * row['offset_bound_s']:.2f} ms"),
                Cell("–" if pd.isna(row["stretched"]) else f"{row['stretched']:.3g} times"),
                Cell("gone" if row["is_lost"] else "" if row["is_same_code"] else "other code or packages"),
            ]
            for row in nodes
        ]  # fmt: skip
        slowdown = nodes[0]["slowdown"]
        caption = f"On average {nodes[0]['load']:.1f} processes wanted a core of the driver's machine at the end."
        if slowdown > 1:
            caption += f" Everything took {slowdown:.3g} times as long on the wall, and is told in the run's seconds."
        return Panel("Nodes", caption, tables=[Table(["Node", "Clock", "Stretched", "Note"], rows, words=["Note"])])


def _beside(found: pd.DataFrame, names: pd.Series, title: str) -> Table:
    rows = [
        [
            Cell(name), Cell(duration(row["measured_s"])), Cell(duration(row["simulated_s"])),
            Cell("–" if pd.isna(row["ratio"]) else f"{row['ratio']:.3g}"), Cell(duration(row["measured_waited_s"])),
            Cell(duration(row["simulated_waited_s"])), Cell(f"{row['n']:,}"),
        ]
        for name, row in zip(names, found.to_dict("records"), strict=True)
    ]  # fmt: skip
    titles = [title, "Measured", "Simulated", "Ratio", "Waited, measured", "Waited, simulated", "Number"]
    return Table(titles, rows)
