"""Calibration: every choice is measured or refused with a reason, what pays is proposed, and nothing is changed."""

import pytest
import torch
import yaml

from sfl_sim.cli import main
from sfl_sim.errors import ScenarioError
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import parse
from sfl_sim.studies import calibrate as module
from sfl_sim.studies.calibrate import Choice, Finding, calibrate, proposal

SCENARIO = {
    "data": {"name": "digits", "train_samples": 200, "test_samples": 20},
    "model": {"name": "cnn_small"},
    "train": {"batch_size": 8},
}


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    """The fewest and shortest rounds, and no compiler, which takes its seconds."""

    def no_compiler(device):
        raise ScenarioError("torch.compile does not work here", key="train.compile")

    monkeypatch.setattr(module, "COMPARISON_S", 0.0)
    monkeypatch.setattr(module, "MIN_PAIRS", 2)
    monkeypatch.setattr(module, "MAX_STEPS", 4)
    monkeypatch.setattr("sfl_sim.engine.experiment.check_compiler", no_compiler)


def test_every_choice_is_measured_or_refused():
    announced = []
    findings = calibrate(parse(SCENARIO), Settings(), announced.append)
    by_flags = {finding.choice.flags: finding for finding in findings}
    assert list(by_flags) == [
        "",
        "--set train.precision=bf16",
        "--set train.compile=true",
    ]
    assert announced == ["the settings as they are", *list(by_flags)[1:]]
    assert by_flags["--set train.compile=true"].refusal == "torch.compile does not work here"
    assert "bfloat16" in by_flags["--set train.precision=bf16"].refusal
    assert all(finding.step_s > 0 for finding in findings if finding.refusal is None)


def test_a_measured_round_has_its_clients_though_none_is_there_at_first(tmp_path):
    profile = tmp_path / "late.csv"
    profile.write_text("client,start_s,end_s,period_s\na,5,900,1000\nb,5,900,1000\nc,5,900,1000\n")
    clients = {"count": 3, "availability": {"profile": str(profile), "lost": "drop"}}
    (variant,) = parse(SCENARIO | {"clients": clients}).variants
    trial = module._Trial(variant.scenario, torch.device("cpu"), threads=1)
    ops = trial._experiment.walk.round(2, trial._clients).ops
    assert (ops["node"] == b"server").sum() >= trial.steps


def test_what_leaves_the_bits_alone_is_told_from_what_rounds(monkeypatch):
    choices = [Choice({"max_graphs": 1}), Choice({"precision": "float64"})]
    monkeypatch.setattr(module, "_choices", lambda *_: iter(choices))
    found = {finding.choice.flags: finding.exact for finding in calibrate(parse(SCENARIO), Settings(), print)}
    assert found["--set train.max_graphs=1"]
    assert not found["--set train.precision=float64"]


def test_what_pays_alone_is_tried_together(monkeypatch):
    ratios = {"--threads 1": 0.8, "--set train.compile=true": 0.7, "--set train.precision=bf16": 1.2,
              "--set train.compile=true --threads 1": 0.5}  # fmt: skip
    choices = [Choice(threads=1), Choice({"compile": True}), Choice({"precision": "bf16"})]
    monkeypatch.setattr(module, "_choices", lambda *_: iter(choices))
    monkeypatch.setattr(module, "_compare", lambda usual, choice, _: Finding(choice, ratios[choice.flags], 0.9))
    found = calibrate(parse(SCENARIO), Settings(), print)
    assert [finding.choice.flags for finding in found] == ["", *ratios]
    assert proposal(found).choice == Choice({"compile": True}, threads=1)


def test_only_what_is_clearly_faster_is_proposed():
    doubtful = [Finding(Choice({"compile": True}), ratio, upper) for ratio, upper in [(0.97, 0.99), (0.8, 1.1)]]
    refused = Finding(Choice({"precision": "bf16"}), 0.1, 0.1, refusal="no instructions")
    assert proposal([Finding(Choice()), *doubtful, refused]) is None
    clear = Finding(Choice(threads=1), 0.9, 0.94)
    assert proposal([Finding(Choice()), *doubtful, clear]) == clear


def test_the_command_proposes_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(SCENARIO))
    main(["tiny.yaml", "--calibrate"])
    printed = capsys.readouterr()
    assert "measuring --set train.precision=bf16" in printed.err
    assert "as it is" in printed.out
    assert "not --set train.compile=true: torch.compile does not work here" in printed.out
    assert printed.out.splitlines()[-1].startswith(("Fastest, in ", "Nothing is clearly faster"))
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]
