"""What studies store is what the schema describes: every column, and all that no folder may lack."""

import pyarrow.parquet as pq
import pytest
from stored import assert_described

from sfl_sim.api import Results, run, serve, whatif
from sfl_sim.store.reading import read_entries
from sfl_sim.store.schema import tables

pytestmark = pytest.mark.usefixtures("without_pages")

TINY = {
    "name": "tiny",
    "data": {"name": "digits", "train_samples": 90, "test_samples": 20},
    "model": {"name": "cnn_small", "cut": 1},
    "clients": {"count": 3, "compute": 1e9, "network": {"uplink_bps": 1e6, "downlink_bps": 1e6}},
    "train": {"rounds": 2, "batch_size": 10},
}
TRAINED = {
    "inside": {
        "method": {"name": "splitfed_v2"},
        "train": TINY["train"] | {"on_nan": "skip", "stop": {"accuracy": 0.99}},
        "report": {
            "snapshots": {"rounds": [1], "every": 2},
            "representations": 10,
            "leakage": {"samples": 10, "aux_share": 0.2, "epochs": 1},
            "metrics": {"mine": "torch.nn.functional:cross_entropy"},
        },
    },
    "exits": {
        "method": {"name": "multiexit"},
        "data": TINY["data"]
        | {
            "test_samples": 90,
            "partition": {"kind": "label_shards", "shards": 1},
            "test": {"kind": "rho_ood", "rho": 0.9},
        },
    },
    "replay": {"method": {"name": "korea"}, "clients": TINY["clients"] | {"participation": 0.5}},
    "stale": {
        "grid": {"method.name": ["fedbuff", "splitfed_v1"]},
        "clients": TINY["clients"]
        | {"power": {"compute_w": 1, "radio": "wifi"}, "availability": {"profile": "fedscale", "lost": "drop"}},
    },
    "words": {
        "data": {"name": "synthetic", "shape": [6], "n_labels": 9, "samples": 96, "test_samples": 9},
        "model": {"name": "char_transformer", "cut": "block1"},
        "lora": {},
        "method": {"name": "splitfed_v2"},
    },
}


def assert_all_described(kind, folder, further=()):
    """Every table and column is in the schema, and what must not be missing is there."""
    described = tables(kind)
    for path in folder.glob("*.parquet"):
        table = described[path.stem]
        assert_described(table, pq.read_schema(path).names, further if table.further else ())
    for table in described.values():
        if table.under:
            names = {column.stored: name for name, column in table.columns.items() if column.stored}
            for entry in read_entries(folder, table):
                assert_described(table, [names.get(name, name) for name in entry])
        assert not table.is_required or (folder / table.file).exists(), table.file


@pytest.mark.parametrize("name", TRAINED)
def test_all_that_a_run_stores_is_described(name, tmp_path):
    folder = run(
        TINY | TRAINED[name], out=tmp_path / "run", device="cpu", threads=1, fresh=True, allow_code=True
    ).folder
    assert_all_described("run", folder, ["mine"] if name == "inside" else [])
    if name == "stale":
        results = Results(folder)
        rounds = results.rounds[results.rounds["variant"] == "fedbuff"]
        (summary,) = results.summary[results.summary["variant"] == "fedbuff"].to_dict("records")
        assert summary["lost_share"] == rounds["lost"].sum() / rounds["participants"].sum()
        assert summary["lost_bytes"] == rounds["lost_bytes"].sum()


def test_all_that_a_serving_stores_is_described(tmp_path):
    scenario = TINY | {"method": {"name": "multiexit"}, "serving": {"requests": 40}}
    assert_all_described("serving", serve(scenario, out=tmp_path / "served", device="cpu").folder)


def test_all_that_a_what_if_stores_is_described(tmp_path):
    trained = run(TINY | {"method": {"name": "splitfed_v1"}}, out=tmp_path / "run", device="cpu", threads=1, fresh=True)
    scenario = TINY | {"method": {"name": "splitfed_v1"}}
    asked = whatif(scenario, {"model.cut": [1, 2]}, out=tmp_path / "asked", runs=[trained.folder], draws=2)
    assert_all_described("whatif", asked.folder, ["model.cut"])
    assert {path.stem for path in asked.folder.glob("*.parquet")} == tables("whatif").keys()
    assert asked.points["model.cut"].tolist() == [1, 2]
