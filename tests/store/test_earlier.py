"""Finished trials are taken from earlier runs instead of being run again, and are what they would have been."""

import json
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from small_study import SCENARIO, TIMING, Log, run, study, summaries

from sfl_sim.runs.news import Began, Ended, Planned, Reused
from sfl_sim.runs.trial import Settings

pytestmark = pytest.mark.usefixtures("without_pages")

REUSE = replace(TIMING, reuse=True)
GRID = {"method.name": ["fedavg", "splitfed_v2"], "train.lr": [0.1, 0.2]}


TRAINED = Settings(threads=1, reuse=True)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sfl_sim.report.pages.run.write_report", lambda folders, out, parts: out.write_text("a page"))
    return tmp_path


def ran(wanted, settings=REUSE, out=None):
    """The folder of a run, and which variants did run and which were taken."""
    log = Log(wanted)
    folder, error = run(wanted, out, settings, log)
    assert error is None
    return folder, list(log.of(Began)), {name: str(taken.run) for name, taken in log.of(Reused).items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder with runs of the small study: `timed` by the clock alone, and `trained`."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("sfl_sim.report.pages.run.write_report", lambda folders, out, parts: out.write_text("a page"))
        for name, settings in (("timed", TIMING), ("trained", Settings(threads=1))):
            run(study(), folder / name, settings)
    return folder


@pytest.fixture
def earlier(runs, here):
    """Copies one of these runs to reports/small, where the next run looks for it."""
    return lambda name: shutil.copytree(runs / name, here / "reports" / "small")


def tables(folder):
    """All tables of a run in one order of rows and columns, and in plain types."""
    found = {}
    for path in sorted(folder.glob("*.parquet")):
        frame = pd.read_parquet(path)
        found[path.name] = frame.astype({"variant": object})[sorted(frame)]
    return found


def flip(folder):
    content = bytearray((folder / "rounds.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "rounds.parquet").write_bytes(content)


def break_off(folder):
    """As after a copy that broke off: the list of checksums ends after the first line, and a table is another one."""
    sums = (folder / "SHA256SUMS").read_text().splitlines(keepends=True)
    (folder / "SHA256SUMS").write_text(sums[0])
    rounds = pd.read_parquet(folder / "rounds.parquet")
    rounds.assign(ended_s=1.0).to_parquet(folder / "rounds.parquet")


def rename(wrong):
    """Give the trial a name that no run gives."""

    def damage(folder):
        (folder / "checkpoints" / "0000.json").write_text(json.dumps({"variant": wrong, "seed": wrong}))
        summary = json.loads((folder / "summary.json").read_text())
        variants = [summary["variants"][0] | {"name": wrong}]
        (folder / "summary.json").write_text(json.dumps(summary | {"variants": variants}))

    return damage


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("timed", flip),
        ("timed", break_off),
        ("timed", lambda folder: (folder / "ops.parquet").write_text("damaged")),
        ("timed", lambda folder: (folder / "ops.parquet").unlink()),  # the largest table
        ("trained", lambda folder: shutil.rmtree(folder / "checkpoints")),
        *(("timed", rename(wrong)) for wrong in (["x"], {}, None)),
    ],
)
def test_from_a_run_that_is_not_what_was_written_nothing_is_taken(name, damage, earlier):
    damage(earlier(name))
    _, began, taken = ran(study(repeats=2), REUSE if name == "timed" else TRAINED)
    assert (began, taken) == (["fedavg"], {})


def test_files_that_no_command_reads_may_be_added_to_a_run(earlier):
    folder = earlier("timed")
    for name in ("landscape.parquet", "of_mine.parquet", "notes.json"):
        (folder / name).write_bytes(b"added")
    _, _, taken = ran(study(repeats=2))
    assert taken == {"fedavg": "reports/small"}


def test_a_value_more_in_a_grid_runs_alone_and_all_is_as_if_it_had_run_together():
    folder, began, taken = ran(study(grid=GRID | {"train.lr": [0.2]}, repeats=2), TRAINED)
    assert (str(folder), len(began), taken) == ("reports/small", 2, {})
    folder, began, taken = ran(study(grid=GRID, repeats=2), TRAINED)
    assert str(folder) == "reports/small-2"
    assert began == ["fedavg, lr=0.1", "splitfed_v2, lr=0.1"]
    assert taken == dict.fromkeys(["fedavg, lr=0.2", "splitfed_v2, lr=0.2"], "reports/small")
    fresh, began, taken = ran(study(grid=GRID, repeats=2), Settings(threads=1), folder.with_name("fresh"))
    assert (len(began), taken) == (4, {})
    assert json.loads((folder / "summary.json").read_text()) == json.loads((fresh / "summary.json").read_text())
    ours, theirs = tables(folder), tables(fresh)
    assert ours.keys() == theirs.keys()
    for name, table in ours.items():
        pd.testing.assert_frame_equal(table, theirs[name])
    for number in range(8):
        for kind in ("json", "safetensors"):
            ours, theirs = (place / "checkpoints" / f"{number:04d}.{kind}" for place in (folder, fresh))
            assert ours.read_bytes() == theirs.read_bytes()


def test_the_same_again_is_taken_from_itself(earlier):
    before = tables(earlier("timed"))
    again, began, taken = ran(study())
    assert (str(again), began, taken) == ("reports/small", [], {"fedavg": "reports/small"})
    assert all(table.equals(before[name]) for name, table in tables(again).items())


def test_another_name_and_another_target_are_the_same_trial():
    ran(study(report={"target_accuracy": 0.9}))
    folder, began, taken = ran(study(name="other", grid={"train.lr": [0.05, 0.1]}))
    assert (began, taken) == (["lr=0.1"], {"lr=0.05": "reports/small"})
    assert pd.read_parquet(folder / "ops.parquet")["variant"].unique().tolist() == ["lr=0.05", "lr=0.1"]
    assert {name: one["target_accuracy"] for name, one in summaries(folder).items()} == {
        "lr=0.05": None,
        "lr=0.1": None,
    }


def test_a_run_beside_the_folder_that_is_asked_for_is_found_too(tmp_path):
    ran(study(), out=tmp_path / "elsewhere" / "first")
    _, began, taken = ran(study(), out=tmp_path / "elsewhere" / "second")
    assert (began, taken) == ([], {"fedavg": str(tmp_path / "elsewhere" / "first")})


def test_nothing_is_taken_unasked(earlier):
    earlier("timed")
    assert ran(study(), TIMING, out=None)[1] == ["fedavg"]


def test_a_file_that_is_named_counts_by_its_content(here):
    devices = here / "mine.csv"
    devices.write_text("device,ms_per_frame,reference_macs\nphone,50,1e8\n")
    clients = SCENARIO["clients"] | {"compute": "mine.csv"}
    first, _, _ = ran(study(clients=clients))
    assert ran(study(clients=clients))[1] == []
    devices.write_text("device,ms_per_frame,reference_macs\nphone,60,1e8\n")
    second, began, _ = ran(study(clients=clients), out=here / "reports" / "changed")
    assert began == ["fedavg"]
    assert summaries(first)["fedavg"]["timeline_digest"] != summaries(second)["fedavg"]["timeline_digest"]


def test_a_file_that_changes_while_it_is_in_use_is_not_what_was_computed_from(here):
    devices = here / "mine.csv"
    devices.write_text("device,ms_per_frame,reference_macs\nphone,50,1e8\n")
    wanted = study(clients=SCENARIO["clients"] | {"compute": "mine.csv"})

    def change(news):
        if isinstance(news, Ended):
            devices.write_text("device,ms_per_frame,reference_macs\nphone,60,1e8\n")

    run(wanted, None, REUSE, Log(wanted, change))
    assert ran(wanted, out=here / "reports" / "again")[1] == ["fedavg"]


@pytest.mark.parametrize(("name", "threads"), [("timed", 1), ("trained", 2)])
def test_training_is_not_taken_from_the_clock_alone_nor_from_other_threads(name, threads, earlier):
    earlier(name)
    assert ran(study(), Settings(threads=threads, reuse=True))[1] == ["fedavg"]


def test_what_other_code_computed_is_computed_again(monkeypatch, earlier):
    earlier("timed")
    with monkeypatch.context() as other_code:
        other_code.setattr("sfl_sim.runs.cache_key.code_version", lambda: "other")
        assert ran(study())[1] == ["fedavg"]
    assert ran(study(), replace(TIMING, resume=True))[1] == ["fedavg"]


def test_an_interrupted_run_gives_what_it_has_finished_to_a_grid_that_has_changed():
    def press(news):
        if not isinstance(news, Began | Planned) and news.trial == 1:
            raise KeyboardInterrupt

    two = study(grid={"train.lr": [0.1, 0.2]})
    run(two, None, REUSE, Log(two, press))
    _, began, taken = ran(study(grid={"train.lr": [0.3, 0.2, 0.1]}))
    assert (began, taken) == (["lr=0.3", "lr=0.2"], {"lr=0.1": "reports/small"})
