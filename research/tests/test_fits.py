"""The shipped cost profiles are the fits of the scripts to the measurements."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from research.profiles import fit_ncnn, fit_phones
from sfl_sim.ops import KINDS
from sfl_sim.system.profiles import find, read_table


def test_the_shipped_profile_is_the_fit_to_the_measurements() -> None:
    costs = fit_ncnn.fitted(fit_ncnn.networks(), fit_ncnn.relative(fit_ncnn.clients(fit_ncnn.measurements())))
    table = read_table(find("costs", "ncnn", ""), [*(f"{kind}_efficiency" for kind in KINDS), "overhead_macs"], "")
    efficiencies = [float(table.numbers(f"{kind}_efficiency")[0]) for kind in KINDS]
    assert efficiencies == pytest.approx((1 / costs[list(KINDS)]).tolist(), rel=5e-3)
    assert float(table.numbers("overhead_macs")[0]) == pytest.approx(costs["n_ops"], rel=5e-3)


def test_the_fit_finds_the_costs_that_machines_have_in_common() -> None:
    rng = np.random.default_rng(0)
    networks = ["mobilenet_v2", *"abcdefg"]
    work = pd.DataFrame(rng.lognormal([20, 17, 17, 17, 4], 1, (len(networks), 5)), networks, [*KINDS, "n_ops"])
    costs = pd.Series([0.5, 4.0, 2.0, 2.0, 2e6], work.columns)
    latency_ms = pd.DataFrame(rng.lognormal(0, 1, (9, 1)) * (work @ costs).to_numpy(), columns=networks)
    latency_ms.loc[0] = rng.lognormal(0, 1, len(networks))  # one machine is like no other
    found = fit_ncnn.fitted(work, fit_ncnn.relative(latency_ms))
    assert (found / found["conv"]).to_numpy() == pytest.approx((costs / costs["conv"]).to_numpy(), rel=1e-4)
    assert work.loc["mobilenet_v2"] @ found == pytest.approx(work.loc["mobilenet_v2", list(KINDS)].sum())


def test_the_profiles_of_phones_and_of_runtimes_are_the_fits_to_the_measurements() -> None:
    """Some ten seconds, to count the work of 54 networks."""
    measured = fit_phones.measurements()
    work = fit_phones.work_of(sorted(measured["network"].unique()))
    seen = fit_phones.typical(measured)
    found = {"phones": fit_phones.of_phones(work, seen)}
    found |= {runtime: fit_phones.of_runtime(runtime, work, seen) for runtime in fit_phones.RUNTIMES}
    for name, costs in found.items():
        row = fit_phones.profile(costs, work.loc["mobilenet_v2"])
        del row["reference_network"]
        table = read_table(find("costs", name, ""), list(row), "")
        fitted = [float(cell) for cell in row.values()]
        assert [float(table.numbers(column)[0]) for column in row] == pytest.approx(fitted, rel=1e-2), name


def test_the_fit_finds_costs_from_sources_of_other_speeds() -> None:
    rng, networks = np.random.default_rng(0), ["mobilenet_v2", *"abcdefgh"]
    work = pd.DataFrame(rng.lognormal([20, 20, 19, 17, 4], 1, (9, 5)), networks, fit_phones.COSTS)
    work["macs"] = work[["conv", "matrix", "grouped"]].sum(axis=1)
    costs = pd.Series([0.4, 0.7, 1.4, 3.0, 1e5], fit_phones.COSTS)
    seen = {
        source: np.log(speed * (work[fit_phones.COSTS] @ costs)) for source, speed in (("one", 1e-9), ("two", 3e-9))
    }
    found = fit_phones.fitted(work, seen)
    reference = work.loc["mobilenet_v2"]
    expected = costs * reference["macs"] / (reference[fit_phones.COSTS] @ costs)
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-3)
