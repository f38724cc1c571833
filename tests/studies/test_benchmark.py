"""The benchmark: equal tuning on seeds of its own, new seeds, other links, and a further method at its own price."""

import json
import shutil
from contextlib import contextmanager
from types import SimpleNamespace

import pandas as pd
import pytest

from sfl_sim.errors import ScenarioError
from sfl_sim.report.load import BENCHMARK, OWN_LINKS
from sfl_sim.report.load import load as load_run
from sfl_sim.runs.news import Reused, silent
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import load, parse
from sfl_sim.store import Failure, RunFolder
from sfl_sim.studies import benchmark
from sfl_sim.studies.launch import Outcome, TrialsFailed

pytestmark = pytest.mark.usefixtures("no_reports")

SCENARIO = {
    "name": "tiny", "seed": 5, "repeats": 2, "data": {"name": "digits", "train_samples": 120, "test_samples": 60},
    "model": {"name": "mlp", "cut": 1}, "clients": {"count": 3, "power": {"compute_w": 2.0, "radio": "wifi"}},
    "train": {"rounds": 2, "batch_size": 20, "on_nan": "stop"},
    "grid": {"method.name": ["splitfed_v1", "cse_fsl"]},
    "benchmark": {
        "rates": [0.001, 0.5], "links": {"wifi": {"clients.network": {"uplink_bps": 2e7, "downlink_bps": 5e7}}},
    },
}  # fmt: skip


@contextmanager
def quiet():
    yield silent


def study(**changes):
    return parse(SCENARIO | changes)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmark")
    return benchmark.run_benchmark(study(), [], folder, Settings(device="cpu", threads=1), quiet)


def test_each_variant_gets_its_best_rate_and_new_seeds(compared):
    rows = pd.read_csv(compared / BENCHMARK)
    own = rows[rows["links"] == OWN_LINKS]
    assert own[["variant", "seed"]].to_numpy().tolist() == [
        ["splitfed_v1", 5], ["splitfed_v1", 6], ["cse_fsl", 5], ["cse_fsl", 6],
    ]  # fmt: skip
    assert set(own["lr"]) == {0.5}, "which is better than one that hardly moves"
    assert own["client_memory_bytes"].nunique() == 2, "a head takes some, too"


def test_rates_are_chosen_on_validation_samples_where_there_are_any(monkeypatch):
    """There 0.001 is better; by the test set 0.5 would be."""
    with_samples = study(data=SCENARIO["data"] | {"validation": {"share": 0.1}}, grid={})
    tried = benchmark.pilots(with_samples)
    summary = pd.DataFrame({"variant": [each.name for each in tried.variants], "seed": 900,
                            "accuracy": [0.5, 0.6], "validation_score": [0.7, 0.4]})  # fmt: skip
    rounds = pd.DataFrame({"accuracy": [0.5]})
    for known, rate in ((summary, 0.001), (summary.assign(validation_score=float("nan")), 0.5)):
        run = SimpleNamespace(summary=known, rounds=rounds, manifest={"failed": []})
        monkeypatch.setattr(benchmark, "load_run", lambda folder, run=run: run)
        assert benchmark.best_rates(with_samples, tried, None) == [rate]


def test_other_links_have_the_scores_of_the_training_and_times_of_their_own(compared):
    rows = pd.read_csv(compared / BENCHMARK).set_index(["variant", "seed"])
    own, wifi = (rows[rows["links"] == links] for links in (OWN_LINKS, "wifi"))
    assert (own["score"] == wifi["score"]).all()
    assert (own["simulated_s"] > wifi["simulated_s"]).all()
    assert wifi["holds"].xs("splitfed_v1", level="variant").all()


def test_the_targets_are_the_references_seed_by_seed(compared):
    rows = pd.read_csv(compared / BENCHMARK).query("links == @OWN_LINKS")
    first = rows[rows["variant"] == "splitfed_v1"]
    assert (first["target"] <= 0.9 * 1.0).all()
    assert rows.groupby("seed")["target"].nunique().tolist() == [1, 1]
    assert (first["seconds_to_target"] <= first["simulated_s"]).all()
    assert (first["joule_to_target"] <= first["joule"]).all()


def test_half_of_what_the_reference_spends_is_a_budget(compared):
    """The best round within it counts."""
    rows = pd.read_csv(compared / BENCHMARK).query("links == @OWN_LINKS")
    (run,) = (each for each in compared.glob("run-*") if each.is_dir() and not each.name.endswith("-wifi"))
    rounds = load_run(run).rounds
    of_method = rounds.groupby([rounds["variant"].str.partition(",")[0], "seed"])
    for row in rows.to_dict("records"):
        own, reference = (of_method.get_group((name, row["seed"])) for name in (row["variant"], "splitfed_v1"))
        best = own.loc[own["ended_s"] <= 0.5 * reference["ended_s"].max(), "accuracy"].max()
        assert row["score_in_half_time"] == pytest.approx(best, rel=1e-5, nan_ok=True)


def test_a_further_method_costs_its_own_runs_alone(compared, monkeypatch):
    ran = []
    usual = benchmark.run_study

    def watched(plan, place, settings, notify):
        return usual(plan, place, settings, ran.append)

    monkeypatch.setattr(benchmark, "run_study", watched)
    benchmark.run_benchmark(study(), ["fedavg"], compared, Settings(device="cpu", threads=1), quiet)
    reused = [news for news in ran if type(news).__name__ == "Reused"]
    began = [news for news in ran if type(news).__name__ == "Began"]
    assert (len(reused), len(began)) == (2 * 2 + 2 * 2, 2 + 2)
    rows = pd.read_csv(compared / BENCHMARK)
    assert list(dict.fromkeys(rows["variant"])) == ["splitfed_v1", "cse_fsl", "fedavg"]


def test_a_killed_one_goes_on_with_what_was_finished(compared, tmp_path, monkeypatch):
    """By the same command; nobody has to say so."""
    news = []

    @contextmanager
    def watched():
        yield news.append

    class Killed(BaseException):
        """What happens to a process."""

    def kill(self):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "publish", kill)
        with pytest.raises(Killed):
            benchmark.run_benchmark(study(), [], tmp_path, Settings(device="cpu", threads=1), watched)
    assert not any(isinstance(each, Reused) for each in news)
    benchmark.run_benchmark(study(), [], tmp_path, Settings(device="cpu", threads=1), watched)
    assert sum(isinstance(each, Reused) for each in news) == 4, "the pilots"
    rows = set((compared / BENCHMARK).read_text().splitlines())  # another test may have added some
    assert rows.issuperset((tmp_path / BENCHMARK).read_text().splitlines())


@pytest.fixture
def failing(compared, tmp_path):
    """Copy of a folder of the benchmark, `rates` or `run`, in whose manifest some trials have diverged."""

    def copy(name, *failed):
        found = [each for each in sorted(compared.glob(f"{name}-*")) if each.is_dir() and "wifi" not in each.name]
        (own,) = (each for each in found if not (load_run(each).summary["variant"].str.contains("fedavg")).any())
        folder = shutil.copytree(own, tmp_path / name)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["failed"] = [{"variant": variant, "seed": seed} for variant, seed in failed]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return folder

    return copy


def test_a_pilot_that_diverged_in_the_end_does_not_count(failing):
    tried = benchmark.pilots(study())
    (best,) = (v for v in tried.variants if "cse_fsl" in v.name and v.scenario.train.lr == 0.5)
    folder = failing("rates", (best.name, best.scenario.seed))
    assert benchmark.best_rates(study(), tried, folder) == [0.5, 0.001]


def test_a_seed_that_diverged_in_the_end_has_no_row(failing):
    final = benchmark.at_rates(study(), [0.5, 0.5])
    folder = failing("run", (final.variants[0].name, 6))
    rows = benchmark.table_of(study(), final, folder, folder, OWN_LINKS)
    assert rows[["variant", "seed"]].to_numpy().tolist() == [["splitfed_v1", 5], ["cse_fsl", 5], ["cse_fsl", 6]]


def test_whatever_else_goes_wrong_ends_it(tmp_path, monkeypatch):
    error = TrialsFailed([Failure("cse_fsl", 5, 1, "TypeError: None")], 4)
    error.outcome = Outcome(tmp_path, "failed")

    def fail(*_):
        raise error

    monkeypatch.setattr(benchmark, "run_study", fail)
    with pytest.raises(TrialsFailed, match=r"TypeError: None .*same command"):
        benchmark.run_benchmark(study(), [], tmp_path, Settings(device="cpu", threads=1), quiet)


def test_no_table_is_made_of_an_interrupted_repricing(compared, monkeypatch):
    monkeypatch.setattr(benchmark.Repricing, "run", lambda *_: Outcome(compared, "interrupted"))
    (compared / BENCHMARK).rename(compared / "whole.csv")
    with pytest.raises(KeyboardInterrupt):
        benchmark.run_benchmark(study(), [], compared, Settings(device="cpu", threads=1), quiet)
    assert not (compared / BENCHMARK).exists()
    (compared / "whole.csv").rename(compared / BENCHMARK)


def test_pilots_seeds_are_not_compared():
    with pytest.raises(ScenarioError, match=r"^benchmark\.pilot_seed: "):
        benchmark.pilots(study(benchmark={"rates": [0.1], "pilot_seed": 6}))


def test_rates_of_the_scenario_are_refused():
    with pytest.raises(ScenarioError, match=r"^grid\.train\.lr: "):
        benchmark.pilots(study(grid={"train.lr": [0.1, 0.2]}))
    with pytest.raises(ScenarioError, match=r"^--set: train\.lr: "):
        benchmark.pilots(parse(SCENARIO, overrides=["train.lr=0.1"]))


@pytest.mark.parametrize("name", ["as trained", "../up", ""])
def test_names_of_links_are_names_of_folders(name):
    with pytest.raises(ScenarioError, match=r"benchmark\.links"):
        study(benchmark={"links": {name: {"clients.network.scale": 2}}})


@pytest.mark.parametrize("line", ["train.lr: 0.2", "clients.network.speed: 3", "clients.network.scale: 0"])
def test_links_that_cannot_be_used_are_refused_in_their_line_before_any_training(tmp_path, line):
    path = tmp_path / "mine.yaml"
    path.write_text(f"benchmark:\n  links:\n    other:\n      {line}\n")
    with pytest.raises(ScenarioError) as caught:
        benchmark.check_links(load(path))
    assert (caught.value.key, caught.value.line) == (line.partition(":")[0], 4)


def test_links_can_be_set_in_the_command_line():
    links = parse(SCENARIO, overrides=["benchmark.links.far.clients.network.scale=0.5"]).base.benchmark.links
    assert links["far"] == {"clients.network.scale": 0.5}
