"""Rounds in which clients go away and come back: memory and open files after each, and records that must fit together.

`benchmarks/soak.py` runs thousands of them.
"""

import json
import os
import resource
from pathlib import Path

import numpy as np
import pandas as pd

LINKS = ["uplink", "downlink"]
BATCH_SIZE = 8


def scenario(rounds):
    return {
        "name": "soak",
        "data": {"name": "synthetic", "shape": [1, 8, 8], "samples": 1_600, "test_samples": 100},
        "model": {"name": "cnn_small", "cut": 1},
        "clients": {
            "count": 100,
            "participation": 0.1,
            "compute": {"profile": "ai_benchmark", "scale": 4e-6, "jitter": 0.2},
            "network": {
                "profile": "mobiperf",
                "scale": 0.01,
                "latency_s": 0.045,
                "shared": {"access_points": 4, "capacity_bps": 4e5},
            },
            "power": {"compute_w": 2.0, "radio": "wifi"},
            "availability": {"profile": "flash", "begins_at_h": 12},
        },
        "train": {"rounds": rounds, "batch_size": BATCH_SIZE, "drop_last": True},
        "method": {"name": "splitfed_v2"},
    }


def resident():
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def soak(case, rounds, out):
    """Run into the folder `out`, and measure the resident bytes and the open files after every round."""
    from sfl_sim.runs.news import Ended
    from sfl_sim.runs.trial import Settings
    from sfl_sim.scenario.load import parse
    from sfl_sim.studies.train import run_study

    seen = []

    def look(news):
        if isinstance(news, Ended):
            seen.append((resident(), len(os.listdir("/proc/self/fd"))))

    study = parse(scenario(rounds))
    run_study(study, out, Settings(timing_only=case == "timing only", threads=1), look)
    return [list(each) for each in zip(*seen, strict=True)]


def contradictions(folder, rounds):
    """List contradictions in the records of a run, in words."""
    table = {name: pd.read_parquet(folder / f"{name}.parquet") for name in ("rounds", "ops", "dropouts", "layers")}
    (summary,) = json.loads((folder / "summary.json").read_text())["variants"]
    each, dropouts = table["rounds"].set_index("round"), table["dropouts"]
    ops = table["ops"].astype({"node": str, "kind": str}).reset_index()
    lost = ops.merge(dropouts.drop(columns="seed"), on=["round", "client", "node", "kind", "step"])
    lost = lost[lost["node"].isin(["client", *LINKS])]  # a job that waited at the server leaves no trace
    of_lost = ops.merge(dropouts[["round", "client"]].drop_duplicates())
    messages = ops[ops["node"].isin(LINKS)]
    declared = messages["kind"].map(declared_bytes(table["layers"]))
    is_whole = ~messages["index"].isin(lost["index"])

    def bytes_of(rows, *links):
        return rows[rows["node"].isin(links)].groupby("round")["bytes"].sum()

    claims = {
        "every round is there": list(each.index) == list(range(1, rounds + 1)),
        "rounds follow each other": (each["started_s"].to_numpy()[1:] >= each["ended_s"].to_numpy()[:-1]).all(),
        "who takes part does something": equal(clients(ops[ops["client"] >= 0]), each["participants"]),
        "some are lost": 0 < each["lost"].sum() < each["participants"].sum(),
        "rounds tell who is lost": equal(clients(dropouts), each["lost"]),
        "all that is lost on devices and links has a record": len(lost)
        == dropouts["node"].isin(["client", *LINKS]).sum(),
        "it ends when it is lost": (lost["ended_s"] == lost["lost_s"]).all(),
        "what comes through has all its bytes": (messages["bytes"] == declared)[is_whole].all(),
        "what is lost has fewer": (messages["bytes"] <= declared)[~is_whole].all(),
        "operations have the bytes of rounds": equal(bytes_of(ops, "uplink"), each["bytes_up"])
        and equal(bytes_of(ops, "downlink"), each["bytes_down"]),
        "rounds have the bytes of the run": all(each[way].sum() == summary[way] for way in ("bytes_up", "bytes_down")),
        "rounds have the bytes of the lost": equal(bytes_of(of_lost, *LINKS), each["lost_bytes"]),
        "rounds have the energy of the run": np.isclose(
            each.eval("client_joule * participants").sum(), summary["joule"]
        ),
    }
    return [claim for claim, holds in claims.items() if not holds]


def declared_bytes(layers):
    """Compute the bytes of each kind of message: part-1 is one layer; its output has 4 bytes a number, labels 8."""
    first = layers.query("layer == 1").iloc[0]
    gradients = BATCH_SIZE * first["activation_bytes"]
    return {"model": 4 * first["parameters"], "gradients": gradients, "smashed": gradients + 8 * BATCH_SIZE}


def clients(rows):
    """Count the clients in each round."""
    return rows.groupby("round")["client"].nunique()


def equal(found, told):
    """Return True if the sums `found` of rounds, 0 for rounds without rows, are those that the rounds' table tells."""
    return (found.reindex(told.index, fill_value=0) == told).all()
