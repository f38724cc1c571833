"""The command line in this process, and what a run of it leaves."""

import json

from sfl_sim.cli import main

TINY = """\
name: tiny
data: {name: digits, train_samples: 200, test_samples: 100, partition: {kind: dominant_label, p: 0.9, phi: 1}}
model: {name: cnn_small, cut: 1}
clients: {compute: ai_benchmark, network: mobiperf}
train: {rounds: 2, batch_size: 8}
grid:
  - {method.name: splitfed_v1}
  - {method.name: splitfed_v2, server.order: [fcfs, cyclic]}
report: {target_accuracy: 0.15}
"""


def sfl_sim(*arguments, code=0):
    """Run the command in this process and check its exit code."""
    found = 0
    try:
        main([str(a) for a in arguments])
    except SystemExit as stop:
        found = stop.code
    assert found == code


def summary(folder):
    return json.loads((folder / "summary.json").read_text())["variants"]


def digests(folder):
    return [(v["timeline_digest"], v["weights_digest"]) for v in summary(folder)]
