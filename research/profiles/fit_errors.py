"""Errors of the cost models: measured over predicted time of networks that no fit has seen.

    python -m research.profiles.fit_errors

Writes measurements/errors.csv, from which `sfl-sim whatif --uncertainty` draws. Every network is predicted from the
machine's latency of MobileNet-V2: on phones with ncnn, TFLite and PyTorch Mobile, which stand for clients, and on an
x86 server with torch. For clients in a known runtime only its own networks count.
"""

from functools import partial

import pandas as pd

from research.profiles import fit_phones

TARGET = fit_phones.HERE / "measurements" / "errors.csv"
HEADER = {
    "what": "how many times as long networks took as each cost model says, from the machine's latency of MobileNet-V2",
    "source": "measurements/ncnn.csv (its phones), phone_runtimes.csv and runtimes.csv (one x86 core); medians of"
    " devices",
    "unit": "factor, measured time over predicted time of a forward pass",
    "derived": "by research/profiles/fit_errors.py. macs: nothing fitted; phones and runtimes: each network left out"
    " of its fit with its family",
    "licence": "facts, stated with their source",
    "caution": "forward passes of single images; errors of training, of batches and of parts of a network are others",
}


def errors(work: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Compute the factors: columns cost, node, network, factor."""
    of_any = {"macs": fit_phones.macs, "phones": fit_phones.fitted_price}
    of_one = {runtime: partial(fit_phones.runtime_price, runtime) for runtime in fit_phones.RUNTIMES}
    found = []
    for cost, price in {**of_any, **of_one}.items():
        rows = fit_phones.left_out(work, measured, price)
        at = {"server": rows["source"] == "torch"}
        at["clients"] = (
            rows["row"].str.contains(", phone, ") if cost in of_any or cost == "ncnn" else rows["source"] == cost
        )
        if cost in of_one:
            at["clients"] &= rows["source"] == cost
        for node, is_there in at.items():
            factor = (1 / (1 + rows["error"]))[is_there].groupby(rows["source"] + " " + rows["network"]).median()
            found += [(cost, node, network, each) for network, each in factor.items()]
    table = pd.DataFrame(found, columns=["cost", "node", "network", "factor"])
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
