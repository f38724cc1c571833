"""Measured latencies become rates and training factors of devices, and a profile that a scenario can name."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.rng import stream
from sfl_sim.scenario.sections import Compute
from sfl_sim.studies.calibrate_devices import calibrate_devices, write_profile
from sfl_sim.system.cost import read_cost
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
    with pytest.raises(ScenarioError, match="--out: would replace the measurements"):
        write_profile(found, measured, measured)
    assert measured.read_text() == NCNN


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("device,network,forward_ms\na,mobilenet_v9,3\n", r":2: calibrate-devices: column 'network' .*did you"),
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
