"""Studies: how steps are to be computed is checked before anything is written, and is told afterwards."""

import json
import re
from contextlib import suppress
from dataclasses import replace

import pytest
import torch
import yaml

from sfl_sim.api import Results
from sfl_sim.cli import main
from sfl_sim.data.builtin import synthetic
from sfl_sim.data.loading import DATASETS
from sfl_sim.errors import ScenarioError
from sfl_sim.runs.backends import _one_by_one
from sfl_sim.runs.news import Ended, Warned, silent
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import load, parse
from sfl_sim.store.trial import Failure, write_failure
from sfl_sim.studies.launch import TrialsFailed
from sfl_sim.studies.train import check, run_study

pytestmark = pytest.mark.usefixtures("without_pages")

SCENARIO = {
    "name": "tiny",
    "data": {"name": "digits", "train_samples": 120, "test_samples": 20},
    "model": {"name": "cnn_small"},
    "clients": {"count": 3, "compute": 1e9, "network": {"uplink_bps": 1e6, "downlink_bps": 1e6}},
    "train": {"rounds": 1, "batch_size": 8},
}


@pytest.fixture
def sfl_sim(tmp_path, monkeypatch):
    """Run the scenario with options into a folder; its summary and manifest."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(SCENARIO))

    def run(*options, out="run"):
        main(["tiny.yaml", "-q", "--out", out, *options])
        files = (tmp_path / out / f"{name}.json" for name in ("summary", "manifest"))
        summary, manifest = (json.loads(file.read_text()) for file in files)
        return summary["variants"], manifest

    return run


def test_who_took_part_in_each_round_is_stored(sfl_sim):
    """Also of a method whose clients work on after the round for which they were drawn."""
    grid = "grid={method.name: [splitfed_v2, fedasync]}"
    sfl_sim("--timing-only", "--set", grid, "--set", "clients.participation=0.67", "--set", "train.rounds=4")
    results = Results("run")
    trials = ["variant", "round"]
    told = results.participants.groupby(trials)["client"].apply(set)
    assert told.map(len).to_dict() == results.rounds.set_index(trials)["participants"].to_dict()
    worked = results.ops.query("client >= 0").groupby(trials, observed=True)["client"].apply(set)
    assert all(told[trial] >= clients for trial, clients in worked.items())
    assert (told["splitfed_v2"] == worked["splitfed_v2"]).all()
    assert 2 == told["splitfed_v2"].map(len).max() < len(set().union(*told["splitfed_v2"]))


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_precision_that_this_machine_does_not_have_is_refused_before_anything_is_written(
    precision, sfl_sim, tmp_path, capsys
):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit, match="2"):
        sfl_sim("--set", f"train.precision={precision}")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sfl-sim: --set: train.precision: ")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


def test_a_timing_only_run_needs_no_instructions_and_sends_half_the_activations_under_bf16(sfl_sim):
    (full,), _ = sfl_sim("--timing-only", out="full")
    (half,), manifest = sfl_sim("--timing-only", "--set", "train.precision=bf16", out="half")
    models = 2 * 3 * 160 * 4  # both ways, three clients, 16 filters of 9 weights and a bias in float32
    labels = 120 * 8
    activations = 120 * 16 * 8 * 8 * 4
    assert full["bytes_up"] + full["bytes_down"] == models + labels + 2 * activations
    assert half["bytes_up"] + half["bytes_down"] == models + labels + activations
    assert half["peak_graphs"] is None
    assert manifest["computing"]["precision"] == ["bf16"]


def test_bounded_graphs_change_no_digest_and_are_told(sfl_sim):
    (usual,), _ = sfl_sim(out="usual")
    grid = "grid={train.max_graphs: [null, 1, 2]}"
    variants, manifest = sfl_sim("--set", grid, "--fresh", out="bounded")
    for key in ("weights_digest", "timeline_digest", "simulated_s"):
        assert {v[key] for v in variants} == {usual[key]}
    assert [v["peak_graphs"] for v in variants] == [3, 1, 2]
    assert {v["threads"] for v in variants} == {1}
    assert manifest["computing"] == {
        "precision": ["float32"],
        "max_graphs": [None, 1, 2],
    }


@pytest.mark.pages
def test_a_relative_target_is_known_once_its_reference_has_run_be_it_after_a_resume(tmp_path):
    grid = {"method.name": ["splitfed_v2", "fedavg"]}
    relative = {"report": {"target_accuracy": {"share": 0.5, "of": "fedavg"}}}
    study, settings = parse({**SCENARIO, "grid": grid, "repeats": 2, **relative}), Settings(threads=1)

    def summary_after(interrupt_at, **how):
        def notify(news):
            if isinstance(news, Ended) and news.trial == interrupt_at:
                raise KeyboardInterrupt

        outcome = run_study(study, tmp_path / "run", replace(settings, **how), notify)
        return outcome.status, Results(outcome.folder).summary.set_index(["variant", "seed"])

    status, early = summary_after(interrupt_at=1)
    assert status == "interrupted"
    assert early["target_accuracy"].isna().all()
    assert early["best_accuracy"].notna().all()
    status, found = summary_after(interrupt_at=None, resume=True)
    assert status == "complete"
    assert set(found["target_accuracy"]) == {0.5 * found.loc["fedavg", "best_accuracy"].median()}
    assert found.loc["fedavg", "rounds_to_accuracy"].tolist() == [1, 1]
    assert "of the best accuracy of" in (tmp_path / "run" / "report.html").read_text()


def warned(lr, out=None, resume=True, interrupt=False, backend="local"):
    told = []

    def listen(news):
        told.append(news)
        if interrupt and isinstance(news, Ended):
            raise KeyboardInterrupt

    study = parse(SCENARIO | {"train": SCENARIO["train"] | {"lr": lr}})
    with suppress(KeyboardInterrupt):
        settings = Settings(timing_only=True, resume=resume, backend=backend)
        run_study(study, out, settings, listen, *([_one_by_one] if backend == "live" else []))
    return [news.problem for news in told if isinstance(news, Warned)]


def test_an_interrupted_run_that_begins_anew_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert warned(0.1, resume=False, interrupt=True) == []
    (again,) = warned(0.1, resume=False, interrupt=True)
    assert "reports/tiny " in again
    assert "--resume" in again
    assert warned(0.1, resume=True) == []
    assert warned(0.1, resume=False) == []


def test_live_runs_which_nothing_resumes_get_no_advice_to_resume(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    warned(0.1, resume=False, interrupt=True, backend="live")
    (again,) = warned(0.1, resume=False, backend="live")
    assert "begins anew" in again
    assert "--resume" not in again

    def fails(variants, folder, settings, notify):
        write_failure(folder.trial_folder(0), Failure("tiny", 0, 1, "NodeFailed: all clients have gone away"))

    with pytest.raises(TrialsFailed) as raised:
        run_study(parse(SCENARIO), tmp_path / "failed", Settings(backend="live"), silent, fails)
    assert raised.value.again == "the same command"


def test_a_run_that_finds_nothing_to_resume_says_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = [warned(0.1), warned(0.2), warned(0.2, tmp_path / "there"), warned(0.3, resume=False)]
    assert [re.findall(r"\S*/(?:tiny|there)[-\d]*", problem) for (problem,) in asked] == [
        ["reports/tiny"],
        ["reports/tiny-2", "reports/tiny"],
        [str(tmp_path / "there")],
        ["reports/tiny", "reports/tiny-3"],
    ]
    assert warned(0.1) == []


@pytest.mark.leaves_out
def test_a_page_or_a_table_that_cannot_be_made_costs_no_results(sfl_sim, monkeypatch, capsys, tmp_path):
    """Neither page, nor what would help, nor the table in the terminal; the run is there all the same."""

    def fail(*_, **__):
        raise MemoryError("Unable to allocate 74.5 GiB")

    for thing in ("pages.run.write_report", "terminal.results_in_terminal"):
        monkeypatch.setattr(f"sfl_sim.report.{thing}", fail)
    monkeypatch.setattr("sfl_sim.studies.train.speedups", fail)
    main(["tiny.yaml", "--timing-only", "--out", "run"])
    told = capsys.readouterr()
    warned = [line.removeprefix("warning: ") for line in told.err.splitlines() if line.startswith("warning: ")]
    what = ["speedups.parquet", "report.html", "the table of results"]
    assert warned == [f"{each} is left out: MemoryError: Unable to allocate 74.5 GiB" for each in what]
    assert told.out == "run\n"
    assert {"rounds.parquet", "ops.parquet", "summary.json"} <= {path.name for path in (tmp_path / "run").iterdir()}


@pytest.mark.parametrize(
    ("method", "grid", "key"),
    [
        ({"name": "splitfedv9"}, {"method.name": ["fedavg", "splitfed_v2"]}, "method.name"),
        (
            {"name": "fedbuff", "bufer": 3}, {"method": [{"name": "fedavg"}, {"name": "splitfed_v2"}]}, "method.bufer"
        ),
        ({"name": "fedbuff", "buffer": -3}, {"method.buffer": [1, 2]}, "method.buffer"),
    ],
)  # fmt: skip
def test_what_the_grid_replaces_in_every_variant_is_checked_too(method, grid, key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(SCENARIO | {"method": method, "grid": grid}, sort_keys=True))
    with pytest.raises(ScenarioError) as raised:
        check(load("s.yaml"))
    assert (raised.value.file, raised.value.line, raised.value.key) == ("s.yaml", 16, key)


def test_a_data_set_is_made_once_although_some_ask_for_its_labels_alone(monkeypatch):
    made = []

    def counted(shape=(1, 8, 8)):
        made.append(shape)
        return synthetic(shape, samples=90)

    monkeypatch.setitem(DATASETS, "digits", counted)
    sections = {"data": {"name": "digits", "shape": [1, 8, 8]}, "repeats": 2}
    check(parse(SCENARIO | sections), torch.device("cpu"))
    assert len(made) == 1


def test_a_study_whose_trials_wait_for_one_another_says_so_once():
    data = SCENARIO["data"] | {"train_samples": 180}
    study = parse(
        SCENARIO | {"data": data, "model": {"name": "mobilenet_v1"}, "train": {"batch_size": 60}, "repeats": 2}
    )
    (told,) = check(study, torch.device("cpu"), Settings(jobs=64, threads=2))
    assert told.startswith("--jobs: 64 trials with 2 threads each share")
    assert check(study, torch.device("cpu"), Settings(jobs=64, threads=1)) == []


def test_the_grid_may_replace_what_is_fine_by_itself():
    check(parse(SCENARIO | {"method": {"name": "hydra", "cut2": 2}, "grid": {"method": [{"name": "fedavg"}]}}))
    check(parse(SCENARIO | {"method": {"name": "fedavg", "buffer": 2}, "grid": {"method.name": ["fedbuff"]}}))


@pytest.mark.parametrize(
    ("method", "momentum", "host"),
    [
        ("smofi", 0.0, "fedavgm"),
        ("smofi", 0.9, None),
        ({"name": "smofi", "fusion": False}, 0.9, "fedavgm"),
        ("fednar", 0.9, "splitfed_v1"),
        ({"name": "fednar", "max_norm": 1.0}, 0.9, None),
        ({"name": "fedprox", "mu": 0.0}, 0.9, "splitfed_v1"),
        ("fedprox", 0.0, None),
    ],
)
def test_a_method_whose_idea_does_nothing_is_told(method, momentum, host):
    study = parse(SCENARIO | {"method": method, "train": {"rounds": 1, "momentum": momentum}})
    told = check(study, None, Settings(timing_only=True))
    assert [host in line for line in told if line.startswith("method.name")] == ([True] if host else [])


def test_a_model_s_folder_that_does_not_exist_is_named_whatever_the_data_are(tmp_path):
    study = parse({"model": {"name": "hf", "path": str(tmp_path / "nowhere")}})
    with pytest.raises(ScenarioError) as error:
        check(study)
    assert (error.value.key, error.value.found) == ("model.path", str(tmp_path / "nowhere"))


def test_labels_that_no_client_holds_are_told(tmp_path):
    def warned(n_shards, **more):
        told = []
        data = SCENARIO["data"] | {"partition": {"kind": "label_shards", "n_shards": n_shards}} | more
        scenario = SCENARIO | {"data": data, "train": {"rounds": 1, "batch_size": 1}}
        out = tmp_path / f"{n_shards} {len(more)}"
        run_study(parse(scenario), out, Settings(timing_only=True), told.append)
        return [news.problem for news in told if isinstance(news, Warned)]

    assert warned(6) == []
    assert warned(6, validation={"share": 0.2}) == []
    of_samples, of_labels = warned(40)
    assert of_samples.endswith("of the training samples belong to no client")
    assert of_labels.startswith("data.partition: no client holds a sample of ")


def test_attacks_need_training_and_a_timing_only_run_says_so(tmp_path):
    told = []
    study = parse(SCENARIO | {"report": {"leakage": {}}, "repeats": 2})
    run_study(study, tmp_path / "run", Settings(timing_only=True), told.append)
    (problem,) = (news.problem for news in told if isinstance(news, Warned))
    assert problem.startswith("report.leakage: ")


def test_variants_that_differ_in_serving_alone_are_one_trial(tmp_path):
    told = []
    study = parse(SCENARIO | {"grid": {"serving.requests": [10, 20]}})
    run_study(study, tmp_path / "run", Settings(timing_only=True), told.append)
    assert sum(isinstance(news, Ended) for news in told) == 1
