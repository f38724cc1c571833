"""The shipped cost profiles are the fits of the scripts to the measurements."""

import numpy as np
import pandas as pd
import pytest

from research.profiles import fidelity, fit_phones
from sfl_sim.system.profiles import find, read_table


def test_the_profiles_of_phones_and_of_runtimes_are_the_fits_to_the_measurements() -> None:
    """Some twenty seconds, to count the work of 54 networks and of parts of others."""
    measured = fit_phones.to_fit(fit_phones.measurements())
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
    rng, networks = np.random.default_rng(0), ["mobilenet_v2", *map(str, range(40))]
    sizes = [20, 20, 19, 19, 19, 19, 17, 16, 4]
    work = pd.DataFrame(rng.lognormal(sizes, 1, (len(networks), 9)), networks, fit_phones.COSTS)
    work["macs"] = work[["conv", "pointwise", "grouped", "depthwise", "dense"]].sum(axis=1)
    costs = pd.Series([0.4, 0.7, 1.4, 0.8, 0.9, 0.3, 3.0, 5.0, 1e6], fit_phones.COSTS)
    seen = {
        source: np.log(speed * (work[fit_phones.COSTS] @ costs)) for source, speed in (("one", 1e-9), ("two", 3e-9))
    }
    found = fit_phones.fitted(work, seen)
    reference = work.loc["mobilenet_v2"]
    expected = costs * reference["macs"] / (reference[fit_phones.COSTS] @ costs)
    assert found.tolist() == pytest.approx(expected.tolist(), rel=0.1)  # as usual costs draw them a little


def test_errors_are_told_by_fits_that_see_no_more_than_the_shipped_ones() -> None:
    measured, seen_by = fit_phones.measurements(), []

    def price(work: pd.DataFrame, seen: fit_phones.Typical) -> pd.Series:
        seen_by.append(seen)
        return pd.Series(1.0, work.index)

    fit_phones.left_out(pd.DataFrame(index=measured["network"].unique()), measured, price)
    assert all("phone regnetx002" not in seen["tflite"] for seen in seen_by)  # TFLite of 2020 had no kernels for it
    assert all("resnet50" not in seen["onnxruntime"] for seen in seen_by)  # left out of all fits to that server
    assert any("resnet18" in seen["onnxruntime"] for seen in seen_by)


def test_the_page_on_fidelity_has_the_tables_that_its_script_writes() -> None:
    page = fidelity.PAGE.read_text(encoding="utf-8")
    assert fidelity.tabled(page) == page
    slipped = page.replace("| MobileNet-V3 | -", "| MobileNet-V3 | within 40 % | -", 1)
    assert fidelity.tabled(slipped) == page != slipped
