"""Accuracy of predicted latencies of networks that were not measured: plain MACs against the fitted cost profile.

    python -m research.profiles.cost_model

Each of ncnn's networks is left out in turn, and the others give the costs (`fit_ncnn.py`). A machine's speed
comes from its latency of the reference network, as with profiles/devices/ai_benchmark.csv, or of all other networks.
Goals, on machines that could be clients: a median absolute relative error of at most 0.25, and a rank correlation
across networks on a machine of at least 0.95.

Then the same for costs/phones.csv, for the profiles of runtimes, and for their sources (`fit_phones.py`), with a
goal of 0.2; and the profile ncnn on them, which has seen ncnn's networks. Last, how many networks lie within the 80 %
bands that `sfl-sim whatif --uncertainty` draws from the other networks.
"""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.pairs import publish
from research.profiles import fit_ncnn as ncnn
from research.profiles import fit_phones as phones
from research.profiles.fit_errors import TARGET, price_of_ncnn

RESULTS = Path(__file__).parent / "results"
FITS = {"plain": ncnn.plain, "fitted": ncnn.fitted}


def compare(work, fleets):
    """Compare the fits by their predictions for the machines of a fleet."""
    for machines, (networks, costs_ms, latency_ms, rate_from) in fleets.items():
        known = work.loc[networks]
        for name, fit in FITS.items():
            predicted = ncnn.left_out(known, ncnn.relative(costs_ms), latency_ms, fit, rate_from)
            found = {key: round(value, 3) for key, value in ncnn.errors(predicted, latency_ms).items()}
            yield {
                "machines": machines,
                "rows": len(latency_ms),
                "costs": name,
                "error": found["error"],
                "error, quartiles": [found["error_25"], found["error_75"]],
                "rank correlation": found["rank"],
                "rank, quartiles": [found["rank_25"], found["rank_75"]],
            }


def by_network(work, latency_ms):
    """Compute the median over machines of each network's relative error."""
    ratios = ncnn.relative(latency_ms)
    predicted = {name: ncnn.left_out(work, ratios, latency_ms, fit, [ncnn.REFERENCE]) for name, fit in FITS.items()}
    for network in work.index.drop(ncnn.REFERENCE):
        yield {
            "network": network,
            "million MACs": round(work.loc[network, ncnn.KINDS].sum() / 1e6, 1),
            "ops": int(work.loc[network, "n_ops"]),
            "latency / reference": round(ratios[network], 2),
            **{
                f"{name}, error": round((predicted_ms[network] / latency_ms[network] - 1).median(), 2)
                for name, predicted_ms in predicted.items()
            },
        }


def on_phones():
    """Compare the costs of phones with others: by source, and then by family of networks."""
    measured = phones.measurements()
    work = phones.work_of(sorted(measured["network"].unique()))
    prices = {"macs": phones.macs, "ncnn": price_of_ncnn, "phones": phones.fitted_price}
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
    work, measured_ms = ncnn.networks(), ncnn.measurements()
    clients_ms = ncnn.clients(measured_ms)
    everything, reference = work.index, [ncnn.REFERENCE]
    fleets = {
        "clients": (everything, clients_ms, clients_ms, reference),
        "clients, speed from all other networks": (everything, clients_ms, clients_ms, list(everything)),
        "clients, without ViT": (everything.drop("vision_transformer"), clients_ms, clients_ms, reference),
    }
    for kind, latency_ms in measured_ms.groupby(level="device_class"):
        others_ms = clients_ms.drop(index=kind, level="device_class", errors="ignore")
        fleets[f"{kind}, costs from other clients"] = (everything, others_ms, latency_ms, reference)
    publish("cost_model", list(compare(work, fleets)), RESULTS)
    publish("cost_model_networks", list(by_network(work, clients_ms)), RESULTS)
    for name, rows in zip(("phones", "phones_families"), on_phones(), strict=True):
        publish(f"cost_model_{name}", rows, RESULTS)
    publish("cost_model_coverage", list(coverage()), RESULTS)


if __name__ == "__main__":
    main()
