"""A scenario's own network is measured in its parts, as rows that a calibration can read."""

import io
import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

import pandas as pd
import pytest
import torch
from command import sfl_sim

from sfl_sim.build.setup import Setup
from sfl_sim.errors import ScenarioError
from sfl_sim.features.devices import measure as measuring
from sfl_sim.features.devices.fit import work_cells
from sfl_sim.features.devices.measure import measure
from sfl_sim.scenario.load import parse
from sfl_sim.scenario.sections import Scenario
from sfl_sim.system.cost import WORK_COLUMNS

CPU = torch.device("cpu")
SMALL = {
    "name": "small",
    "data": {"name": "digits", "train_samples": 100},
    "model": {"name": "cnn_small", "cut": 1},
    "clients": {"count": 2},
    "train": {"rounds": 1},
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "MAX_RUNS", measuring.MIN_RUNS)


def measured(scenario: dict[str, object], **more: object) -> pd.DataFrame:
    out = io.StringIO()
    measure(parse(scenario).variants[0].scenario, out, device=CPU, **more)  # type: ignore[arg-type]
    out.seek(0)
    return pd.read_csv(out)


def test_the_whole_and_both_parts_at_every_cut_are_measured_forward_and_as_a_step() -> None:
    rows = measured(SMALL, machine="mine", batches=(1, 4))

    assert set(rows["device"]) == {"mine"}
    assert rows["part"].value_counts().to_dict() == {"whole": 4, "part-1": 3 * 4, "part-2": 3 * 4}
    assert (rows["forward_ms"].notna() ^ rows["step_ms"].notna()).all()
    assert (rows[["forward_ms", "step_ms"]].max(axis="columns") > 0).all()


def test_rows_tell_the_work_that_a_simulation_prices() -> None:
    rows = measured(SMALL, cuts=["conv2"], batches=(5,))
    network = Setup(parse(SMALL).variants[0].scenario, pixels=False).method(None).task.network

    part1, _ = network.split(2, seed=0, device=None)
    (step,) = rows[(rows["part"] == "part-1") & rows["step_ms"].notna()][WORK_COLUMNS].to_dict("records")
    passes = part1.part.work(5, 3)
    work = passes._replace(updated=4 * part1.part.n_parameters)  # by SGD without momentum
    assert step == {column: float(cell) for column, cell in work_cells(work).items()}
    amounts = rows.set_index([rows["part"], rows["step_ms"].notna()])[WORK_COLUMNS]
    for is_step in (False, True):
        pd.testing.assert_series_equal(
            amounts.loc[("part-1", is_step)] + amounts.loc[("part-2", is_step)],
            amounts.loc[("whole", is_step)],
            check_names=False,
        )


@pytest.mark.parametrize(
    ("data", "model"),
    [
        ({"name": "diabetes"}, {"name": "mlp", "cut": 1}),
        ({"name": "digits", "train_samples": 100}, {"name": "resnet8", "cut": 2}),
    ],
)
def test_any_network_and_goal_can_be_measured(data: dict[str, object], model: dict[str, object]) -> None:
    rows = measured(SMALL | {"data": data, "model": model}, cuts=[2], batches=(1, 2))
    assert set(rows["batch"]) <= {1, 2}
    assert 2 in set(rows["batch"])


def test_a_mini_batch_that_a_batch_norm_cannot_train_on_is_left_out_and_told() -> None:
    class Net(torch.nn.Sequential):
        def __init__(self) -> None:
            super().__init__(
                torch.nn.Flatten(), torch.nn.Linear(64, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 10)
            )

    told: list[str] = []
    rows = measured(SMALL | {"model": {"factory": Net(), "cut": 2}}, cuts=[], batches=(1, 2), notify=told.append)
    assert set(rows["batch"]) == {2}
    assert told[0] == "a mini-batch of 1 is left out: batch norm cannot train on it"


def test_what_is_interrupted_keeps_its_rows() -> None:
    out, told = io.StringIO(), []

    def notify(row: str) -> None:
        told.append(row)
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(parse(SMALL).variants[0].scenario, out, device=CPU, notify=notify)
    rows = pd.read_csv(io.StringIO(out.getvalue()))
    assert rows[["forward_ms", "step_ms"]].notna().sum().to_list() == [2, 1]


def test_all_is_measured_in_turn_three_times_over() -> None:
    told: list[str] = []
    rows = measured(SMALL, cuts=["conv1"], batches=(2,), notify=told.append)
    turns = [re.fullmatch(r"(\d) of 3: (.*): .* ms", line).groups() for line in told]  # type: ignore[union-attr]
    assert [sweep for sweep, _ in turns] == ["1"] * 6 + ["2"] * 6 + ["3"] * 6
    assert [what for _, what in turns] == 3 * [what for _, what in turns[:6]]
    assert (rows["runs"] == 3 * measuring.MIN_RUNS).all()
    assert rows[["runtime", "version", "threads"]].drop_duplicates().to_numpy().tolist() == [
        ["torch", version("torch"), torch.get_num_threads()]
    ]


def test_an_interrupted_table_does_not_look_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(scenario: Scenario, out: TextIO, **_: object) -> None:
        out.write("device\nmine\n")
        raise KeyboardInterrupt

    def refused(scenario: Scenario, out: TextIO, **_: object) -> None:
        raise ScenarioError("no such cut")

    table, scenario, part = tmp_path / "rows.csv", tmp_path / "small.yaml", tmp_path / "rows.csv.part"
    table.write_text("earlier\n")
    scenario.write_text(json.dumps(SMALL))
    for happens, code in ((interrupted, 130), (refused, 2)):
        monkeypatch.setattr(measuring, "measure", happens)
        sfl_sim("devices", "measure", scenario, "--out", table, code=code)
        assert table.read_text() == "earlier\n"
        assert part.exists() == (code == 130)
    assert str(part) in capsys.readouterr().err


def test_times_of_another_runtime_are_filled_into_blank_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, phones = tmp_path / "rows.csv", tmp_path / "phones.csv"
    with table.open("w") as file:
        measure(parse(SMALL).variants[0].scenario, file, machine="phone", cuts=[], runtime="other", device=CPU)
    blank = table.read_text()
    assert blank.count("?") == 4
    table.write_text(blank.replace("?", "1.5", 1))
    sfl_sim("devices", "fit", table, "--out", phones)
    assert "error left, 1 forward passes: median 0%" in capsys.readouterr().out
    table.write_text(blank)
    sfl_sim("devices", "fit", table, "--out", phones, code=2)
    assert "has no measurement" in capsys.readouterr().err


def test_a_cut_that_is_none_is_one_line() -> None:
    with pytest.raises(ScenarioError, match=r"^--cuts: "):
        measured(SMALL, cuts=["conv9"])


def test_from_the_command_line_to_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.yaml").write_text(
        "data: {name: digits, train_samples: 100}\nmodel: {name: cnn_small, cut: 1}\nclients: {count: 2}\n"
    )
    rows, phones = tmp_path / "rows.csv", tmp_path / "phones.csv"
    sfl_sim("devices", "measure", tmp_path / "small.yaml", "--name", "mine", "--batches", "1,8", "--out", rows)
    sfl_sim("devices", "fit", rows, "--out", phones)
    told = capsys.readouterr().out
    assert "mine: " in told
    assert "(7)" in told
    assert f"clients.compute: {{profile: {phones}, cost: " in told
    assert "as a server: {macs_per_s: " in told
    sfl_sim("devices", "measure", tmp_path / "small.yaml", "--batches", "1,none", code=2)
    assert "--batches: " in capsys.readouterr().err
