"""A fuzzer of everything that users hand in; `SFL_SIM_FUZZ=50 pytest tests/fuzz` tries fifty times as much."""

import json
import os
import shutil
from pathlib import Path

import pytest
from damage import (
    NUMBERS,
    SCALARS,
    damaged,
    known_keys,
    mangled,
    scenario_texts,
    scenario_trees,
    scenario_with,
    tables,
    told,
    written,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

TINY = """\
name: tiny
data: {train_samples: 60, test_samples: 20}
clients: {count: 3}
train: {rounds: 1, batch_size: 20}
serving: {requests: 20}
grid: {method.name: [fedavg, splitfed_v2]}
"""
TIMES = int(os.environ.get("SFL_SIM_FUZZ", "1"))


def examples(n):
    """Set the number of examples, times a factor from the environment; shrinking is off because it takes long."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    phases = [Phase.explicit, Phase.generate]
    return settings(max_examples=n * TIMES, suppress_health_check=checks, database=None, phases=phases)


@pytest.fixture(autouse=True)
def offline(tmp_path, monkeypatch):
    """Run in an empty folder, without data sets and downloads."""

    def refuse(*_, **__):
        raise OSError("no network in tests")

    monkeypatch.setattr("sfl_sim.data.download.urlopen", refuse)
    monkeypatch.setenv("SFL_SIM_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@given(tree=scenario_trees())
@examples(60)
def test_damaged_scenarios_are_fine_or_refused_in_one_line(offline, tree):
    (offline / "s.yaml").write_bytes(written(tree))
    told("check", "s.yaml")


@given(text=scenario_texts())
@examples(80)
def test_mangled_text_is_fine_or_refused_in_one_line(offline, text):
    (offline / "s.yaml").write_bytes(text)
    told("check", "s.yaml")


@given(table=tables())
@examples(80)
def test_damaged_profiles_are_fine_or_refused_in_one_line(offline, table):
    kind, content = table
    (offline / "t.csv").write_bytes(content)
    (offline / "s.yaml").write_text(scenario_with(kind, offline / "t.csv"))
    told("check", "s.yaml")


VALUES = SCALARS.map(str) | st.sampled_from(
    ["[", "{a: 1}", "[1, [2, {b: *x}]]", "!!int x", "null", "a=b=c", "9" * 400, *map(repr, NUMBERS)]
)


@given(key=st.sampled_from(known_keys()) | SCALARS.map(str), value=VALUES)
@examples(60)
def test_odd_options_are_fine_or_refused_in_one_line(offline, key, value):
    (offline / "s.yaml").write_text(TINY)
    if "\0" not in key + value:  # which no command line can hold
        told("check", "s.yaml", "--set", f"{key}={value}")


@given(key=st.sampled_from(known_keys()) | SCALARS.map(str), value=VALUES)
@examples(20)
def test_odd_questions_are_answered_or_refused_in_one_line(offline, key, value):
    (offline / "s.yaml").write_text(TINY)
    told("whatif", "s.yaml", "--vary", f"{key}={value}")


@pytest.mark.parametrize("place", ["scenario", "profile"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "100 MB", "picture", "gone", "long name"])
def test_what_is_no_small_text_is_refused_at_once(offline, place, kind):
    odd = offline / "odd"
    match kind:
        case "pipe":
            os.mkfifo(odd)
        case "folder":
            odd.mkdir()
        case "device":
            odd = Path("/dev/zero")
        case "100 MB":
            with odd.open("wb") as file:
                file.truncate(100_000_000)
        case "picture":
            odd.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))
        case "long name":
            odd = odd.with_name(300 * "x")
    (offline / "s.yaml").write_text(scenario_with("devices", odd))

    assert told("check", odd if place == "scenario" else "s.yaml")


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory):
    """A run of two variants."""
    home = tmp_path_factory.mktemp("run")
    (home / "s.yaml").write_text(TINY)
    assert told("run", home / "s.yaml", "--quiet", "--fresh", "--out", home / "run") is None
    return home / "run"


COMMANDS = [
    ["report"],
    ["reprice", "--set", "clients.network.scale=2"],
    ["whatif", "s.yaml", "--vary", "clients.network.scale=1,2", "--run"],
    ["serve", "s.yaml", "--run"],
]


@given(data=st.data(), command=st.sampled_from(COMMANDS))
@examples(10)
def test_damaged_runs_are_shown_or_refused_in_one_line(offline, finished_run, data, command):
    """Damage any value of a JSON file, or bytes of a table."""
    run = offline / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(finished_run, run)
    (offline / "s.yaml").write_text(TINY)
    files = sorted(path.relative_to(run) for path in run.rglob("*") if path.is_file())
    file = run / data.draw(st.sampled_from(files))
    content = file.read_bytes()
    if file.suffix == ".json" and data.draw(st.booleans()):
        tree = data.draw(damaged(st.just(json.loads(content)), st.just("status")))
        file.write_text(json.dumps(tree, default=str, skipkeys=True))
    else:
        file.write_bytes(data.draw(mangled(st.just(content))))
    told(*command, run)
