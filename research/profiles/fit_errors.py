"""Errors of the cost models: measured over predicted time of networks that no fit has seen.

    python -m research.profiles.fit_errors

Writes measurements/errors.csv, from which `sfl-sim whatif --uncertainty` draws. Every network is predicted from the
machine's latency of MobileNet-V2: on phones with ncnn, TFLite and PyTorch Mobile, which stand for clients, and on an
x86 server with torch. For clients in a known runtime only its own networks count.
"""

from __future__ import annotations

from functools import partial

import pandas as pd

from research.profiles import fit_ncnn, fit_phones
from sfl_sim.system.profiles import find, read_row

TARGET = fit_phones.HERE / "measurements" / "errors.csv"
HEADER = {
    "what": "how many times as long networks took as each cost model says, from the machine's latency of MobileNet-V2",
    "source": "measurements/ncnn.csv (its phones), phone_runtimes.csv and runtimes.csv (one x86 core); medians of"
    " devices",
    "unit": "factor, measured time over predicted time of a forward pass",
    "derived": "by research/profiles/fit_errors.py. macs: nothing fitted; ncnn: each network left out of its fit, which"
    " has seen no other runtime; phones and runtimes: each network left out of its fit with its family",
    "licence": "facts, stated with their source",
    "caution": "forward passes of single images; errors of training, of batches and of parts of a network are others",
}


def price_of_ncnn(work: pd.DataFrame, seen: fit_phones.Typical) -> pd.Series:
    """Price all networks by costs/ncnn.csv."""
    columns = [*(f"{kind}_efficiency" for kind in fit_ncnn.KINDS), "overhead_macs"]
    *efficiencies, overhead = (read_row(find("costs", "ncnn", ""), columns, "").numbers(name)[0] for name in columns)
    macs = work[[f"{kind}_macs" for kind in fit_ncnn.KINDS]].to_numpy()
    return (macs / efficiencies).sum(axis=1) + overhead * work["n_ops"]


def errors(work: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Compute the factors: columns cost, node, network, factor."""
    of_any = {"macs": fit_phones.macs, "ncnn": price_of_ncnn, "phones": fit_phones.fitted_price}
    of_one = {runtime: partial(fit_phones.runtime_price, runtime) for runtime in fit_phones.RUNTIMES}
    found = []
    for cost, price in {**of_any, **of_one}.items():
        rows = fit_phones.left_out(work, measured, price)
        at = {"server": rows["source"] == "torch"}
        at["clients"] = rows["row"].str.contains(", phone, ") if cost in of_any else rows["source"] == cost
        for node, is_there in at.items():
            factor = (1 / (1 + rows["error"]))[is_there].groupby(rows["source"] + " " + rows["network"]).median()
            found += [(cost, node, network, each) for network, each in factor.items()]
    table = pd.DataFrame(found, columns=["cost", "node", "network", "factor"])
    latency_ms = fit_ncnn.clients(fit_ncnn.measurements())
    predict = partial(fit_ncnn.left_out, fit_ncnn.networks(), fit_ncnn.relative(latency_ms), latency_ms)
    ratio = (latency_ms / predict(fit_ncnn.fitted, [fit_ncnn.REFERENCE])).xs("phone", level="device_class")
    seen = (table["cost"] == "ncnn") & table["network"].str.startswith("ncnn ")  # by the fit, which must not see them
    table.loc[seen, "factor"] = [ratio[network.split()[-1]].median() for network in table.loc[seen, "network"]]
    return table.sort_values(["cost", "node", "network"], ignore_index=True).round({"factor": 3})


def main() -> None:
    """Write measurements/errors.csv."""
    measured = fit_phones.measurements()
    table = errors(fit_phones.work_of(sorted(measured["network"].unique())), measured)
    header = "".join(f"# {key}: {text}\n" for key, text in HEADER.items())
    TARGET.write_text(header + table.to_csv(index=False), encoding="utf-8")
    print(TARGET.read_text())


if __name__ == "__main__":
    main()
