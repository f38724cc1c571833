"""Measured latencies become rates and training factors of devices, and a profile that a scenario can name."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.features.devices.fit import Calibration, FittedCosts, calibrate_devices, work_cells, write_profile
from sfl_sim.ops import Work
from sfl_sim.rng import stream
from sfl_sim.scenario.sections import Compute
from sfl_sim.system.cost import read_cost, work_of_amounts
from sfl_sim.system.devices import draw_devices

NCNN = """device,network,forward_ms
Snapdragon 855+,mobilenet_v2,9.82
Snapdragon 855+,efficientnet_b0,17.67
Kirin 970,mobilenet_v2,70.53
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "measured.csv"
    path.write_text(text)
    return path


def test_one_anchor_gives_a_device_the_rate_with_which_it_takes_what_was_measured(tmp_path: Path) -> None:
    found = calibrate_devices(write(tmp_path, "device,network,forward_ms\nmine,mobilenet_v2,20\n"), "phones")
    (rate,) = found.devices["macs_per_s"]
    assert rate == pytest.approx(300_774_272 / 0.020)  # the reference network itself
    assert found.devices["training_factor"].isna().all()


def test_several_networks_leave_an_error_and_each_is_predicted_from_the_others(tmp_path: Path) -> None:
    found = calibrate_devices(write(tmp_path, NCNN), "phones")
    assert len(found.error("forward", "fitted_ms")) == 3
    assert len(found.error("forward", "unseen_ms")) == 2  # nothing is left if the only anchor is
    assert 0 < max(abs(found.error("forward", "unseen_ms"))) < 0.3


def test_macs_are_enough_and_a_batch_counts(tmp_path: Path) -> None:
    text = "device,macs,batch,forward_ms,step_ms\na,2e9,1,1000,\na,2e9,4,,48000\n"
    found = calibrate_devices(write(tmp_path, text), "macs")
    assert found.devices.loc[0, ["macs_per_s", "training_factor"]].tolist() == pytest.approx([2e9, 4])


def test_a_device_without_steps_takes_the_factor_of_the_others_and_one_without_forward_its_rate(tmp_path: Path) -> None:
    text = "device,macs,forward_ms,step_ms\na,1e9,1000,6000\nb,1e9,500,\nc,1e9,,3000\n"
    found = calibrate_devices(write(tmp_path, text), "macs").devices
    assert found["training_factor"].tolist() == pytest.approx([2, 2, 2])
    assert found["macs_per_s"].tolist() == pytest.approx([1e9, 2e9, 2e9])


def test_the_factor_of_the_others_is_their_median(tmp_path: Path) -> None:
    steps = "".join(f"{device},1e9,1000,{3000 * factor}\n" for device, factor in {"a": 2, "b": 3, "c": 10}.items())
    found = calibrate_devices(write(tmp_path, f"device,macs,forward_ms,step_ms\n{steps}d,1e9,1000,\n"), "macs").devices
    assert found["training_factor"].tolist() == pytest.approx([2, 3, 10, 3])


def test_the_profile_gives_the_devices_back(tmp_path: Path) -> None:
    text = 'device,macs,forward_ms,step_ms\n"One, plus",1e9,1000,9000\n'
    found = calibrate_devices(write(tmp_path, text), "phones")
    write_profile(found, tmp_path / "mine.csv", tmp_path / "measured.csv")
    mine = Compute(profile=str(tmp_path / "mine.csv"))
    names, rates, factors = draw_devices(1, stream(0, "devices"), mine, read_cost("phones").reference_macs)
    assert (names, rates.tolist(), factors.tolist()) == (["One, plus"], pytest.approx([1e9]), pytest.approx([3]))


def test_a_name_that_begins_like_a_note_is_a_device(tmp_path: Path) -> None:
    text = 'device,macs,forward_ms,step_ms\n"#1 phone",1e9,1000,\nother,1e9,2000,\n'
    write_profile(calibrate_devices(write(tmp_path, text), "macs"), tmp_path / "mine.csv", tmp_path / "measured.csv")
    names, *_ = draw_devices(20, stream(0, "devices"), Compute(profile=str(tmp_path / "mine.csv")))
    assert set(names) == {"#1 phone", "other"}


def test_the_measurements_are_not_replaced(tmp_path: Path) -> None:
    measured = write(tmp_path, NCNN)
    found = calibrate_devices(measured, "macs")
    with pytest.raises(ScenarioError, match=r"^--out: "):
        write_profile(found, measured, measured)
    assert measured.read_text() == NCNN


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("device,network,forward_ms\na,mobilenet_v9,3\n", r":2: devices fit: column 'network' .*did you"),
        ("device,network,forward_ms\na,mobilenet_v2,-3\n", r":2: .*'forward_ms' .*'-3'; allowed: a number above"),
        ("device,network,macs,forward_ms\na,alexnet,5,3\n", r":2: .*needs either a network or macs"),
        ("device,forward_ms\na,3\n", r":2: .*needs either a network or macs"),
        ("device,macs,batch,forward_ms\na,5,1.5,3\n", r":2: .*column 'batch' .*a whole number above 0"),
        ("device,macs,forward_ms\na,5,\n", r"has no measurement"),
        ("device,macs,forward_ms\n,5,1\n", r":2: .*column 'device' .*a name"),
        ("phone,macs,forward_ms\na,5,1\n", r"column 'device' is missing"),
    ],
)
def test_bad_input_gets_one_line(tmp_path: Path, text: str, line: str) -> None:
    with pytest.raises(ScenarioError, match=line) as error:
        calibrate_devices(write(tmp_path, text), "phones")
    assert "\n" not in str(error.value)


def rows_of(path: Path, costs: FittedCosts, machines: dict[str, float], factor: float = 1.5, networks: int = 8) -> Path:
    """Rows of `sfl-sim devices measure` of machines that take `costs` for what networks need, at rates in MAC/s."""
    rng = np.random.default_rng(0)
    rows = []
    for network in range(networks):
        macs, calls, moved, weights = (*rng.lognormal(17, 1, 1), rng.integers(3, 60), *rng.lognormal(13, 1.5, 2))
        for batch, passes in ((1, 1), (16, 1), (16, 3)):
            all_macs, all_moved = batch * passes * macs, batch * passes * moved
            work = Work(all_macs, (all_macs, 0, 0, 0), passes * calls, (0, 0, all_moved, 0), passes * weights)
            needed = all_macs + costs.macs(work.n_ops, all_moved, work.weights)
            kind, slower = ("forward_ms", 1.0) if passes == 1 else ("step_ms", factor)
            for machine, rate in machines.items():
                about = {"device": machine, "network": f"net {network}", "batch": batch}
                rows.append(about | {kind: 1000 * needed * slower / rate} | work_cells(work))
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


ALL = FittedCosts(calls=3e6, moved=20.0, weights=5.0)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of one machine."""
    return rows_of(tmp_path_factory.mktemp("measured") / "rows.csv", ALL, {"a": 1e9})


@pytest.fixture(scope="module")
def calibrated(measured: Path) -> Calibration:
    return calibrate_devices(measured, "macs")


def test_costs_of_calls_moved_data_and_weights_are_found_where_rows_tell_them(tmp_path: Path) -> None:
    found = calibrate_devices(rows_of(tmp_path / "rows.csv", ALL, {"a": 1e9, "b": 4e9}), "macs")
    assert vars(found.own) == pytest.approx(vars(ALL), rel=1e-3)
    one, other = found.devices["macs_per_s"]
    assert other / one == pytest.approx(4, rel=1e-3)
    assert found.devices["training_factor"].tolist() == pytest.approx([1.5, 1.5], rel=1e-3)
    assert abs(found.error("forward", "unseen_ms")).max() < 1e-3


def test_costs_are_told_in_macs_at_the_rates_that_are_told(calibrated: Calibration) -> None:
    (rate,) = calibrated.devices["macs_per_s"]
    in_s = {"a call": ALL.calls / 1e9, "a moved element": ALL.moved / 1e9, "a weight": ALL.weights / 1e9}
    assert {what: macs / rate for what, macs in calibrated.costs().items()} == pytest.approx(in_s, rel=1e-3)


@pytest.mark.parametrize(
    "costs", [FittedCosts(calls=3e6), FittedCosts(moved=20.0), FittedCosts(moved=20.0, weights=5.0)]
)
def test_a_cost_that_is_none_is_not_found(costs: FittedCosts, tmp_path: Path) -> None:
    found = calibrate_devices(rows_of(tmp_path / "rows.csv", costs, {"a": 1e9}), "macs")
    assert vars(found.own) == pytest.approx(vars(costs), rel=1e-3)


def test_rows_that_the_profile_prices_already_change_nothing_in_it(tmp_path: Path) -> None:
    assert calibrate_devices(rows_of(tmp_path / "rows.csv", FittedCosts(), {"a": 1e9}), "macs").own is None


def test_three_networks_are_too_few_for_costs_of_one_s_own(tmp_path: Path) -> None:
    assert calibrate_devices(rows_of(tmp_path / "rows.csv", ALL, {"a": 1e9}, networks=3), "macs").own is None


def test_a_part_that_computes_nothing_says_nothing(tmp_path: Path) -> None:
    idle = {"device": "a", "network": "net 0", "batch": 1, "forward_ms": 5.0, **work_cells(Work.of(0))}
    path = rows_of(tmp_path / "rows.csv", ALL, {"a": 1e9}, networks=3)
    table = pd.read_csv(path)
    pd.concat([table, pd.DataFrame([idle])]).to_csv(path, index=False)
    assert len(calibrate_devices(path, "macs").rows) == len(table)


@pytest.mark.parametrize("cost", ["macs", "phones"])
def test_the_two_profiles_give_the_measured_times_back(
    cost: str, measured: Path, calibrated: Calibration, tmp_path: Path
) -> None:
    found = calibrated if cost == "macs" else calibrate_devices(measured, cost)
    assert found.own is not None
    written = read_cost(write_profile(found, tmp_path / "mine.csv", measured))
    mine = Compute(profile=str(tmp_path / "mine.csv"))
    _, (rate,), (factor,) = draw_devices(1, stream(0, "devices"), mine, written.reference_macs)
    for row in pd.read_csv(measured).to_dict("records"):
        work = work_of_amounts(row)
        is_step = row["step_ms"] == row["step_ms"]
        simulated_s = written.processor(rate / factor if is_step else rate).seconds(work)
        assert 1000 * simulated_s == pytest.approx(row["step_ms"] if is_step else row["forward_ms"], rel=2e-3)
