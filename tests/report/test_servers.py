"""The page on several servers, its picture, and the network as a file; from a run of a scenario with tiers."""

import json
import shutil
from pathlib import Path

import networkx as nx
import pandas as pd
import pytest
from read_table import read

import sfl_sim
from sfl_sim.features.whatif.load import ShownAxis
from sfl_sim.metrics.busy import server_load
from sfl_sim.report.about import setup_in_words
from sfl_sim.report.export import export_runs
from sfl_sim.report.frames import Frames, merge
from sfl_sim.report.load import load
from sfl_sim.report.pages.one_round import lanes_of_servers
from sfl_sim.report.pages.servers import graph_of, picture, server_panels, tier_table
from sfl_sim.store.columns import OP_DTYPE
from sfl_sim.store.files import seal

SCENARIO = {
    "data": {"name": "digits", "train_samples": 120, "test_samples": 50},
    "model": {"name": "cnn8", "cut": 1},
    "clients": {"count": 6},
    "servers": {
        "edge": {"count": 3, "cut": 3, "speedup": 0.5, "backbone": {"uplink_bps": 1e6, "downlink_bps": 1e6}},
        "fog": {"count": 1, "cut": 5, "workers": "unlimited"},
    },
    "train": {"rounds": 3, "batch_size": 8},
    "method": "splitfed_v1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sfl_sim.run(SCENARIO, out=tmp_path_factory.mktemp("run") / "tiers", timing_only=True).folder


@pytest.fixture(scope="module")
def frames(folder: Path) -> Frames:
    return merge([load(folder)])


def test_the_table_says_what_each_tier_has_done(folder: Path, frames: Frames) -> None:
    stored = pd.read_parquet(folder / "servers.parquet").set_index("server")
    ops = pd.read_parquet(folder / "ops.parquet")
    edge = ops[(ops["node"] == "edge1") & (ops["client"] >= 0)]
    assert stored.loc["edge1", "jobs"] == len(edge)
    assert stored.loc["edge1", "waited_s"] == pytest.approx((edge["started_s"] - edge["requested_s"]).mean())
    assert stored["above"].to_dict() == {
        "server": "",
        "edge1": "fog1",
        "edge2": "fog1",
        "edge3": "fog1",
        "fog1": "server",
    }

    rows = tier_table(frames.variants).rows
    assert [[cell.text for cell in row[1:4]] for row in rows] == [
        ["server", "1", "6"],
        ["edge", "3", "2"],
        ["fog", "1", "6"],
    ]
    assert rows[2][6].text == "–", "nobody is busy among unlimited workers"
    assert read(tier_table(frames.variants))


def test_the_picture_has_every_server_and_every_client_below_its_own(frames: Frames) -> None:
    graph = graph_of(frames, frames.variants[0])
    assert nx.is_tree(graph)
    assert sorted(map(len, (graph["edge1"], graph["edge2"], graph["edge3"]))) == [3, 3, 3]
    lines, servers, clients = picture(graph).data
    assert set(servers.text) == {"server", "fog1", "edge1", "edge2", "edge3"}
    assert len(clients.x) == 6
    assert len(lines.x) == 3 * graph.number_of_edges()
    height = dict(zip(servers.text, servers.y, strict=True))
    assert height["server"] > height["fog1"] > height["edge1"] == height["edge3"] > 0


def test_one_server_has_no_section_and_a_star_as_its_graph(tmp_path: Path) -> None:
    one = SCENARIO | {"servers": {}, "train": {"rounds": 1}}
    frames = merge([load(sfl_sim.run(one, out=tmp_path / "one", timing_only=True).folder)])
    assert server_panels(frames) == []
    graph = graph_of(frames, frames.variants[0])
    assert sorted(graph["server"]) == [f"client{c}" for c in range(6)]


def test_the_network_is_exported_as_networkx_reads_it(folder: Path, tmp_path: Path) -> None:
    written = export_runs([folder], tmp_path / "files", ["graphml", "json"])
    assert written.graphs == ["network_splitfed_v1.graphml", "network_splitfed_v1.json"]
    assert str(written).endswith("0 tables, 0 figures, 2 graphs")
    graph = nx.read_graphml(tmp_path / "files" / written.graphs[0])
    also = nx.node_link_graph(json.loads((tmp_path / "files" / written.graphs[1]).read_text()), edges="edges")
    assert nx.utils.graphs_equal(nx.Graph(graph.edges), nx.Graph(also.edges))
    assert graph.edges["edge1", "fog1"]["uplink_bps"] == 1e6
    assert graph.nodes["edge1"]["jobs"] > 0


def test_networks_of_equally_named_variants_of_two_runs_are_files_of_their_own(folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    clients = pd.read_parquet(other / "clients.parquet")
    clients.assign(uplink_bps=2e6).to_parquet(other / "clients.parquet")
    seal(other, "*.parquet", "*.json", "*.yaml")
    written = export_runs([folder, other], tmp_path / "files", ["graphml"])
    assert written.graphs == ["network_splitfed_v1-2.graphml", "network_splitfed_v1.graphml"]
    graph = nx.read_graphml(tmp_path / "files" / "network_splitfed_v1-2.graphml")
    assert [edge["uplink_bps"] for *_, edge in graph.edges("client0", data=True)] == [2e6]


def test_each_server_has_a_lane_of_its_own_in_the_gantt_chart() -> None:
    jobs = pd.DataFrame(
        {"node": ["edge2", "edge1", "edge1", "server"], "started_s": [0, 0, 1, 3], "ended_s": [2, 1, 2, 4]}
    ).astype({"node": object})  # fmt: skip
    drawn, names = lanes_of_servers(jobs)
    assert list(names) == ["edge2", "edge1", "server"]
    assert drawn.groupby("node")["lane"].nunique().to_dict() == {"edge1": 1, "edge2": 1, "server": 1}
    assert drawn["lane"].nunique() == 3


def test_what_belongs_to_no_client_keeps_a_server_busy_and_is_no_job() -> None:
    ops = pd.DataFrame(
        [
            ("edge1", 0, 0.0, 1.0, 3.0), ("edge1", 1, 0.0, 3.0, 4.0), ("edge1", -1, 4.0, 4.0, 5.0),
            ("uplink", 0, 0.0, 0.0, 9.0), ("aggregator", -1, 5.0, 5.0, 6.0),
        ],
        columns=["node", "client", "requested_s", "started_s", "ended_s"],
    )  # fmt: skip
    rows = pd.DataFrame({name: ops.get(name, 0) for name in OP_DTYPE.names or ()})
    rows["kind"] = "work"
    rows = rows.to_records(index=False).astype(OP_DTYPE)
    load_of = server_load(rows).loc["edge1"]
    assert (load_of["jobs"], load_of["busy_s"], load_of["waited_s"], load_of["clients"]) == (2, 4.0, 4.0, {0, 1})


def test_the_first_lines_of_a_page_say_how_many_servers_there_are(frames: Frames) -> None:
    settings = [own for run in frames.runs for own in run.settings.values()]
    assert "behind 3 edge servers, 1 fog servers" in setup_in_words(settings)
    assert ShownAxis("servers.edge.count", [], [], None, 0).title == "edge servers"
    assert ShownAxis("server.workers", [], [], None, 0).title == "workers"
