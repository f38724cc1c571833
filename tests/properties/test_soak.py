"""Many rounds in which clients go away and come back: their records fit together, and it is seen if they do not."""

import shutil

import pandas as pd
import pytest
import soak

ROUNDS = 25


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("soak") / "run"
    resident_bytes, files = soak.soak("timing only", ROUNDS, folder)
    assert len(resident_bytes) == len(files) == ROUNDS
    assert min(resident_bytes) > 1e7  # of a process with torch
    assert max(files) == files[0]
    return folder


def test_every_byte_and_every_joule_is_where_it_belongs(run):
    assert soak.contradictions(run, ROUNDS) == []


DAMAGE = {
    "every round is there": ("rounds", lambda rounds: rounds[rounds["round"] != 3]),
    "rounds follow each other": ("rounds", lambda rounds: rounds.assign(ended_s=rounds["ended_s"] + 1e6)),
    "who takes part does something": ("ops", lambda ops: ops[(ops["round"] != 5) | (ops["client"] < 0)]),
    "rounds tell who is lost": ("rounds", lambda rounds: rounds.assign(lost=rounds["lost"] + 1)),
    "it ends when it is lost": ("dropouts", lambda dropouts: dropouts.assign(lost_s=dropouts["lost_s"] + 1)),
    "what comes through has all its bytes": ("ops", lambda ops: ops.assign(bytes=ops["bytes"] // 2)),
    "what is lost has fewer": ("ops", lambda ops: ops.assign(bytes=ops["bytes"] * 1000)),
    "operations have the bytes of rounds": ("rounds", lambda rounds: rounds.assign(bytes_up=rounds["bytes_down"])),
    "rounds have the bytes of the run": ("rounds", lambda rounds: rounds.assign(bytes_down=rounds["bytes_down"] + 1)),
    "rounds have the bytes of the lost": ("rounds", lambda rounds: rounds.assign(lost_bytes=rounds["lost_bytes"] + 1)),
    "rounds have the energy of the run": ("rounds", lambda rounds: rounds.assign(client_joule=1.0)),
}


@pytest.mark.parametrize("claim", DAMAGE)
def test_what_is_wrong_is_found(run, tmp_path, claim):
    folder = shutil.copytree(run, tmp_path / "run")
    table, damage = DAMAGE[claim]
    path = folder / f"{table}.parquet"
    damage(pd.read_parquet(path)).to_parquet(path)
    assert claim in soak.contradictions(folder, ROUNDS)
