"""Lays the rounds that EdgeFlowerTune measured beside those that are simulated.

    python -m research.deployment.compare edgeflowertune_2026.csv

The table has the columns device, method, step_s, round_s and upload_mb, a row for each device and method: figures of
Edge-Intelligence-Lab/EdgeFlowerTune @c5f9bdd1ded5, docs/original/current_system_and_device_profile_20260421.md. Each
device calibrates the others of its kind by its step alone; one step calibrates the server.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

import sfl_sim

SCENARIOS = {"fedavg+lora": "deployment/edgeflowertune_fedavg", "splitlora": "deployment/edgeflowertune_split"}
STEPS, MB = 10, 1e6


def simulated(method: str, **changes: object) -> pd.DataFrame:
    """Run the one round of a scenario by the clock alone.

    Gives for each client (in the order of the table) macs_per_s; step_s, the mean of its local steps or, where the
    server trains, of its jobs; round_s, from the beginning until its last message has arrived; and upload_mb.
    """
    with tempfile.TemporaryDirectory() as folder:
        results = sfl_sim.run(
            SCENARIOS[method], overrides={key.replace("__", "."): value for key, value in changes.items()},
            timing_only=True, out=Path(folder) / "run", progress=False,
        )  # fmt: skip
        ops, clients = results.ops, results.clients.set_index("client")[["macs_per_s"]].copy()
    trains = ops[ops["node"] == ("client" if method == "fedavg+lora" else "server")]
    clients["step_s"] = (trains["ended_s"] - trains["started_s"]).groupby(trains["client"]).sum() / STEPS
    clients["round_s"] = ops.groupby("client")["ended_s"].max()
    up = ops[ops["node"] == "uplink"]
    clients["upload_mb"] = up.groupby("client")["bytes"].sum() / MB
    return clients


def rows(measured: pd.DataFrame) -> Iterator[dict[str, object]]:
    """Compare: bytes, and seconds without and with calibration, by method and kind of device."""
    kinds = measured["device"].str.rsplit(n=1).str[0]
    for method, of_method in measured.groupby("method"):
        told = of_method.reset_index(drop=True)
        kind = kinds[of_method.index].reset_index(drop=True)
        before = simulated(str(method))
        for name in kind.unique():
            inside = (kind == name).to_numpy()
            for what in ("upload_mb", "step_s", "round_s"):
                if method == "splitlora" and what == "step_s":
                    continue  # theirs is a whole step of all clients, ours a job at the server
                seen, ours = told.loc[inside, what], before[what].to_numpy()[inside]
                yield row(method, name, what, "nothing", ours / seen - 1, seen, ours)
    fedavg = measured[measured["method"] == "fedavg+lora"].reset_index(drop=True)
    kind = fedavg["device"].str.rsplit(n=1).str[0]
    before = simulated("fedavg+lora")
    rates = before["macs_per_s"] * before["step_s"] / fedavg["step_s"]
    for name in kind.unique():
        numbers = np.flatnonzero(kind == name)
        errors, seen, ours = [], [], []
        for known in numbers:
            after = simulated(
                "fedavg+lora", clients__compute__macs_per_s=rates.where(kind != name, rates[known]).tolist()
            )
            others = [number for number in numbers if number != known]
            errors += (after["round_s"][others] / fedavg["round_s"][others] - 1).tolist()
            seen += fedavg["round_s"][others].tolist()
            ours += after["round_s"][others].tolist()
        yield row("fedavg+lora", name, "round_s", "each other one of its kind", np.array(errors), seen, ours)
    split = measured[measured["method"] == "splitlora"].reset_index(drop=True)
    job_s = split["step_s"][0] / len(split)
    before = simulated("splitlora")
    faster = float((before["step_s"] / job_s).mean())
    after = simulated("splitlora", server__speedup=100 * faster)
    errors = after["round_s"].to_numpy() / split["round_s"].to_numpy() - 1
    yield row("splitlora", "all", "round_s", "one step, for the server", errors, split["round_s"], after["round_s"])


def row(
    method: object, device: object, what: str, by: str, errors: object, seen: object, ours: object
) -> dict[str, object]:
    """Make a row of the table: medians of both, and the range of relative errors."""
    low, high = np.min(errors), np.max(errors)  # type: ignore[call-overload]
    return {
        "method": method, "device": device, "what": what, "calibrated by": by,
        "measured": f"{np.median(seen):.4g}", "simulated": f"{np.median(ours):.4g}",  # type: ignore[call-overload]
        "error": f"{100 * low:+.1f} to {100 * high:+.1f} %",
    }  # fmt: skip


def main(table: Path) -> None:
    """Print a Markdown table."""
    found = list(rows(pd.read_csv(table)))
    print("| " + " | ".join(found[0]) + " |\n" + "|---" * len(found[0]) + "|")
    for each in found:
        print("| " + " | ".join(map(str, each.values())) + " |")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
