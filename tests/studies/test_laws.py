"""Every kind of run keeps the laws of docs/laws.md, and a row that is changed by hand breaks those that it should."""

import pytest
from small_study import TIMING, run

from sfl_sim.scenario.load import parse
from sfl_sim.studies.laws import Breach, Untold, held_against, trials_of

FLASH = {"profile": "flash", "begins_at_h": 12}
WORLD = {
    "name": "laws",
    "seed": 1,
    "data": {"name": "synthetic", "shape": [1, 8, 8], "samples": 200, "test_samples": 20},
    "model": {"name": "cnn_small", "cut": 1},
    "clients": {
        "count": 5,
        "compute": {"profile": "ai_benchmark", "scale": 1e-5},
        "network": {"profile": "mobiperf", "scale": 0.01, "latency_s": 0.02, "trace": "hsdpa_bus"},
        "power": {"compute_w": 2.0, "radio": "wifi", "idle_w": 0.1},
    },
    "train": {"rounds": 3, "batch_size": 16},
    "server": {"speedup": 5.0},
    "method": {"name": "splitfed_v2"},
}
FLEET = {"data": {"samples": 1600}, "clients": {"count": 60, "participation": 0.25}}
ORDER = {"server": {"order": "cyclic", "burst": 2}}
KINDS = {
    "main job": {},
    "cyclic": ORDER,
    "shortest job, patience": {
        "grid": [{"server.order": ["shortest_job", "label_aware"]},
                 {"server.order": "bounded_wait", "server.max_wait_s": 0.5}],
    },
    "unreliable fleet": {
        **FLEET,
        "grid": [{"clients.availability": [FLASH | {"lost": "wait"}, FLASH | {"lost": "drop"},
                                           FLASH | {"lost": "deadline", "deadline_s": 30.0}]}],
    },
    "overcommit": {"clients": {"participation": 0.6, "overcommit": 2}},
    "several servers": {
        "method": {"name": "splitfed_v1"},
        "servers": {"edge": {"count": 2, "backbone": {"uplink_bps": 1e6, "downlink_bps": 1e6, "latency_s": 0.01}}},
    },
    "asynchronous": {"grid": {"method.name": ["fedbuff", "fedasync", "gas"]}},
    "wire": {"wire": {"up": {"kind": "int", "bits": 8}}, "clients": {"network": {"overhead": {"message_bytes": 40}}}},
    "replay": {"method": {"name": "korea"}, "clients": {"participation": 0.6}},
    "shared links": {
        "grid": {"clients.network.shared": [{"access_points": 2, "capacity_bps": 1e5},
                                            {"access_points": 2, "capacity_bps": 1e5, "duplex": "half"}]},
    },
    "other methods": {
        "grid": {"method.name": ["fedavg", "splitnn", "u_shaped", "cse_fsl", "epsl", "harmony", "hydra", "mu_splitfed"]}
    },
    "two workers": {
        "train": {"batches": "full", "local_epochs": 2},
        "server": {"workers": 2},
        "grid": {"method.name": ["splitfed_v1", "splitfed_v2"]},
    },
}  # fmt: skip


def merged(base, changes):
    both = {key: merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
            for key, value in changes.items()}  # fmt: skip
    return base | both


def untold(trials, again=True):
    """The numbers of the laws that cannot all be told; fails at the first breach."""
    numbers = set()
    for law, findings in held_against(trials, again):
        breaches = [finding for _, finding in findings if isinstance(finding, Breach)]
        assert not breaches, (law, breaches[0])
        numbers |= {law.number for _, finding in findings if isinstance(finding, Untold)}
    return numbers


UNTOLD = {
    "several servers": {8},
    "asynchronous": {2, 6, 9},
    "other methods": {6, 9},
    "two workers": {5},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_run_keeps_the_laws(kind, tmp_path):
    folder, failure = run(parse(merged(WORLD, KINDS[kind])), tmp_path / "run", TIMING, lambda news: None)
    assert failure is None
    assert untold(trials_of(folder)) == UNTOLD.get(kind, set())
