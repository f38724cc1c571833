"""Accuracy of predicted latencies of networks that were not measured: plain MACs against fitted costs.

    python -m research.profiles.cost_model

Each network is left out in turn with its family, and the others give the costs (`fit_phones.py`): those of an unknown
runtime and of each runtime. A machine's speed comes from its latency of the reference network, as with
profiles/devices/ai_benchmark.csv. The goal is a median absolute relative error of 0.2. Then how many networks lie
within the 80 % bands that `sfl-sim whatif --uncertainty` draws from the other networks.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.pairs import publish
from research.profiles import fit_phones as phones
from research.profiles.fit_errors import TARGET

RESULTS = Path(__file__).parent / "results"


def on_phones():
    """Compare the costs of phones with others: by source, by family of networks, and a transformer's ratio."""
    measured = phones.measurements()
    work = phones.work_of(sorted(measured["network"].unique()))
    prices = {"macs": phones.macs, "phones": phones.fitted_price}
    prices |= {runtime: partial(phones.runtime_price, runtime) for runtime in phones.RUNTIMES}
    found = {cost: phones.left_out(work, measured, price) for cost, price in prices.items()}
    table = {cost: errors.groupby(["family", "source"])["error"].median() for cost, errors in found.items()}
    found["phones, source left out"] = phones.source_left_out(work, measured, phones.fitted_price)
    rows = []
    for cost, errors in found.items():
        alone = errors[errors["row"].str.startswith("ncnn, phone,")].assign(source="ncnn, phones alone")
        for source, row in phones.summary(pd.concat([errors, alone])).iterrows():
            rows.append({"source": source, "costs": cost, **row.astype(float).round(3).to_dict()})
    yield rows
    yield [
        {"family": family, "source": source, **{cost: round(float(table[cost][family, source]), 2) for cost in table}}
        for family, source in table["phones"].index
    ]
    seen = phones.typical(phones.to_fit(measured[measured["network"].map(phones.family) != "vit"]))
    one, other = "vit_b_16", "resnet50"
    told = {cost: price(work, seen) for cost, price in prices.items()}
    ms = measured.pivot_table("ms", "source", "network")
    yield [
        *({"by": cost, f"{one} over {other}": round(float(each[one] / each[other]), 1)} for cost, each in told.items()),
        *(
            {"by": f"measured in {source}", f"{one} over {other}": round(float(ms[one][source] / ms[other][source]), 1)}
            for source in ("onnxruntime", "torch")
        ),
    ]


def coverage():
    """Find how many networks lie between the quantiles 0.1 and 0.9 of the draws from all others."""
    table = pd.read_csv(TARGET, comment="#")
    for (cost, node), rows in table.groupby(["cost", "node"]):
        inside = []
        for network in rows.index:
            band = np.quantile(np.log(rows["factor"].drop(network)), [0.1, 0.9], method="weibull")
            inside.append(band[0] <= np.log(rows["factor"][network]) <= band[1])
        yield {"costs": cost, "node": node, "networks": len(rows), "within 80 %": round(float(np.mean(inside)), 2)}


def main():
    for name, rows in zip(("phones", "phones_families", "vit"), on_phones(), strict=True):
        publish(f"cost_model_{name}", rows, RESULTS)
    publish("cost_model_coverage", list(coverage()), RESULTS)


if __name__ == "__main__":
    main()
