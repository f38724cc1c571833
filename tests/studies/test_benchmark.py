"""The benchmark: the same search for all on seeds of its own, new seeds, floor and ceiling, and a further method."""

import json
import shutil
from contextlib import contextmanager

import pandas as pd
import pytest

from sfl_sim.build.registry import find_method
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.report.load import BENCHMARK, BENCHMARK_BEFORE, OWN_LINKS, PILOTS_OF_BENCHMARK
from sfl_sim.report.load import load as load_run
from sfl_sim.report.pages.benchmark import write_benchmark
from sfl_sim.runs.news import Reused, silent
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import load, parse
from sfl_sim.store.folder import RunFolder
from sfl_sim.store.trial import Failure
from sfl_sim.studies import benchmark
from sfl_sim.studies.launch import Outcome, TrialsFailed

pytestmark = pytest.mark.usefixtures("no_reports")

SCENARIO = {
    "name": "tiny", "seed": 5, "repeats": 2,
    "data": {"name": "digits", "train_samples": 120, "test_samples": 60, "validation": {"share": 0.2}},
    "model": {"name": "mlp", "cut": 1}, "clients": {"count": 3, "power": {"compute_w": 2.0, "radio": "wifi"}},
    "train": {"rounds": 2, "batch_size": 20, "on_nan": "stop"},
    "grid": {"method.name": ["splitfed_v1", "cse_fsl"]},
    "benchmark": {
        "rates": {"sgd": [0.1, 2.0], "adam": [0.003, 0.1]},
        "links": {"wifi": {"clients.network": {"uplink_bps": 2e7, "downlink_bps": 5e7}}},
    },
}  # fmt: skip


@contextmanager
def quiet():
    yield silent


def study(**changes):
    return parse(SCENARIO | changes)


@pytest.fixture(scope="module", autouse=True)
def three_pilots():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(benchmark, "N_PILOTS", 3)
        yield


@pytest.fixture(scope="module")
def compared(tmp_path_factory, three_pilots):
    folder = tmp_path_factory.mktemp("benchmark")
    return benchmark.run_benchmark(study(), [], folder, Settings(device="cpu", threads=1), quiet)


def settings(name, **changes):
    (variant,) = parse(SCENARIO | {"grid": {}, "repeats": 1, "method": name} | changes).variants
    return list(benchmark.settings_of(variant, {"sgd": [0.01, 1], "momentum": [0.001, 0.1], "adam": [0.001, 0.1]}))


def test_each_variant_gets_what_was_best_on_validation_samples_and_new_seeds(compared):
    rows, pilots = pd.read_csv(compared / BENCHMARK), pd.read_csv(compared / PILOTS_OF_BENCHMARK)
    own = rows[(rows["links"] == OWN_LINKS) & rows["control"].isna()].set_index("variant")
    assert [*zip(own.index, own["seed"], strict=True)] == [
        (name, seed) for name in ("splitfed_v1", "cse_fsl", "splitfrozen") for seed in (5, 6)
    ]
    for name, tried in pilots.groupby("variant"):
        (chosen,) = tried[tried["is_chosen"]].to_dict("records")
        assert chosen["validation_score"] == tried["validation_score"].max()
        assert tried["seed"].unique().tolist() == [900]
        if name in own.index:
            assert set(own.loc[name, "lr"]) == {chosen["lr"]}
    memory = own["client_memory_bytes"].groupby(level=0).first()
    assert memory["splitfrozen"] < memory["splitfed_v1"] < memory["cse_fsl"], "a head takes some, too"


def test_all_methods_are_tried_with_the_same_points(monkeypatch):
    monkeypatch.setattr(benchmark, "N_PILOTS", 12)
    tried = settings("splitfed_v1")
    assert tried == settings("mergesfl")
    kinds = [(each["train.optimizer"], each.get("train.momentum")) for each in tried]
    assert {kind: kinds.count(kind) for kind in kinds} == {("sgd", None): 4, ("sgd", 0.9): 4, ("adam", None): 4}
    assert all(0.1 <= each["train.server.lr"] / each["train.lr"] <= 10 for each in tried)


def test_what_a_method_does_not_know_or_its_scenario_sets_is_left_out():
    assert not any("train.server.lr" in each for each in settings("fedavg"))
    assert {each["method.server_momentum"] for each in settings("fedavgm")} <= {0.1, 0.3, 0.5, 0.7, 0.9}
    given = settings({"name": "fedavgm", "server_momentum": 0.2})
    assert not any("method.server_momentum" in each for each in given)


@pytest.mark.parametrize("name", METHODS)
def test_an_option_that_a_paper_tunes_takes_its_values(name):
    kind = find_method(name)
    key, values = kind.tuned or ("", ())
    assert [getattr(kind.Options(**{key: value}), key) for value in values] == list(values)


def test_smofi_is_never_tried_without_a_momentum_to_be_fused(monkeypatch):
    """Then it would be FedAvgM; it has as many pilots as all others."""
    monkeypatch.setattr(benchmark, "N_PILOTS", 12)
    tried = settings("smofi")
    assert len(tried) == 12
    assert all(each["train.optimizer"] == "adam" or each["train.momentum"] == 0.9 for each in tried)


def test_an_edge_of_the_search_is_named():
    """Of rates from 0.01 to 1, an eighth of the way is 0.0178; an option is at an edge at its least and its most."""
    rates, options = {"sgd": [0.01, 1.0]}, [{"tau": 1}, {"tau": 2}, {"tau": 4}]
    settings = {"optimizer": "sgd", "option": {}}
    found = [benchmark._edges(settings | {"lr": lr, "server_lr": server}, rates, [])
             for lr, server in ((0.017, 0.017), (0.1, 0.1), (0.6, 5.0), (0.1, float("nan")))]  # fmt: skip
    assert found == ["lowest rate", "", "highest rate, highest server's", ""]
    settings |= {"lr": 0.1, "server_lr": 0.1}
    found = [benchmark._edges(settings | {"option": option}, rates, options) for option in options]
    assert found == ["lowest tau", "", "highest tau"]
    assert benchmark._edges(settings | {"option": {"tau": 2}}, rates, [{"tau": 2}]) == "", "nothing was searched"


def test_floor_and_ceiling_stand_in_the_table_and_the_target_between_them(compared):
    rows = pd.read_csv(compared / BENCHMARK).query("links == @OWN_LINKS")
    control = rows[rows["control"].notna()].set_index(["variant", "seed"])["score"]
    assert control.index.get_level_values("variant").unique().tolist() == [
        "trained centrally", "weights at the start", "guessing",
    ]  # fmt: skip
    targets = rows.groupby("seed")["target"].first()
    for seed in (5, 6):
        assert targets[seed] > max(control["weights at the start", seed], control["guessing", seed])
    assert rows[rows["control"].isna()].groupby("seed")["target"].nunique().tolist() == [1, 1]


def test_other_links_have_the_scores_of_the_training_and_times_of_their_own(compared):
    rows = pd.read_csv(compared / BENCHMARK).set_index(["variant", "seed"])
    own, wifi = (rows[rows["links"] == links] for links in (OWN_LINKS, "wifi"))
    own = own.loc[wifi.index]
    assert (own["score"] == wifi["score"]).all()
    assert (own["simulated_s"] > wifi["simulated_s"]).all()
    assert wifi["holds"].xs("splitfed_v1", level="variant").all()


def test_half_of_what_the_reference_spends_is_a_budget(compared):
    """The best round within it counts."""
    rows = pd.read_csv(compared / BENCHMARK).query("links == @OWN_LINKS")
    (run,) = (each for each in compared.glob("run-*") if each.is_dir() and not each.name.endswith("-wifi"))
    rounds = load_run(run).rounds
    of_method = rounds.groupby([rounds["variant"].str.partition(",")[0], "seed"])
    for row in rows[rows["control"].isna()].to_dict("records"):
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
    assert (len(reused), len(began)) == (4 * 3 + 4 * 2, 3 + 2)
    rows = pd.read_csv(compared / BENCHMARK)
    assert list(dict.fromkeys(rows["variant"]))[:4] == ["splitfed_v1", "cse_fsl", "fedavg", "splitfrozen"]
    before = pd.read_csv(compared / BENCHMARK_BEFORE)
    assert "fedavg" not in set(before["variant"])


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
    assert sum(isinstance(each, Reused) for each in news) == 4 * 3, "the pilots"
    rows = set((compared / BENCHMARK).read_text().splitlines())  # another test may have added some
    assert rows.issuperset((tmp_path / BENCHMARK).read_text().splitlines())


@pytest.fixture
def failing(compared, tmp_path):
    """Copy of a folder of the benchmark, `pilots` or `run`, in whose manifest some trials have diverged."""

    def copy(name, *failed):
        found = [each for each in sorted(compared.glob(f"{name}-*")) if each.is_dir() and "wifi" not in each.name]
        (own,) = (each for each in found if load_run(each).summary["variant"].nunique() in (4, 12))
        folder = shutil.copytree(own, tmp_path / name)
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["failed"] = [{"variant": variant, "seed": seed} for variant, seed in failed]
        (folder / "manifest.json").write_text(json.dumps(manifest))
        return folder

    return copy


def searched():
    whole = benchmark.with_controls(study())
    tried = [list(benchmark.settings_of(each, whole.base.benchmark.rates)) for each in whole.points]
    told = benchmark.with_settings(
        whole, tried, {"name": "tiny-pilots", "seed": 900, "repeats": 1, "report.leakage": None}
    )
    return whole, tried, told


def test_a_pilot_that_diverged_in_the_end_does_not_count(failing, compared):
    whole, _, told = searched()
    own = pd.read_csv(compared / PILOTS_OF_BENCHMARK).query("variant == 'cse_fsl'")
    best = own.loc[own["is_chosen"], "pilot"].item()
    lost = told.variants[3 + best - 1]
    again = benchmark.pilots_of(whole, told, failing("pilots", (lost.name, lost.scenario.seed)))
    again = again[again["variant"] == "cse_fsl"].set_index("pilot")
    assert pd.isna(again.loc[best, "validation_score"])
    assert again["is_chosen"].sum() == 1
    assert not again.loc[best, "is_chosen"]


def test_a_seed_that_diverged_in_the_end_has_no_row(failing, compared):
    whole, tried, told = searched()
    scored = benchmark.pilots_of(whole, told, failing("pilots"))
    final = benchmark.with_settings(whole, benchmark.best_of(scored, tried))
    folder = failing("run", (final.variants[0].name, 6))
    rows = benchmark.table_of(whole, final, scored, folder, folder, OWN_LINKS)
    compared_rows = rows[rows["control"] == ""]
    assert compared_rows[["variant", "seed"]].to_numpy().tolist()[:3] == [
        ["splitfed_v1", 5],
        ["cse_fsl", 5],
        ["cse_fsl", 6],
    ]
    halves = compared_rows.set_index(["variant", "seed"]).loc["cse_fsl", ["score_in_half_time", "score_in_half_bytes"]]
    assert halves.notna().all(axis=1).to_dict() == {5: True, 6: False}, "of a first variant that ended early no budget"


def test_without_a_first_variant_there_are_no_budgets_and_the_page_is_written(failing, compared):
    whole, tried, told = searched()
    scored = benchmark.pilots_of(whole, told, failing("pilots"))
    final = benchmark.with_settings(whole, benchmark.best_of(scored, tried))
    folder = failing("run", *((final.variants[0].name, seed) for seed in (5, 6)))
    rows = benchmark.table_of(whole, final, scored, folder, folder, OWN_LINKS)
    assert rows[["score_in_half_time", "score_in_half_bytes"]].isna().all(axis=None)
    rows.to_csv(folder.parent / BENCHMARK, index=False)
    assert write_benchmark(folder.parent, folder.parent / "page.html").exists()


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
        benchmark.check_pilots(study(benchmark={"pilot_seed": 6}))


def test_what_pilots_choose_is_refused_in_a_scenario():
    with pytest.raises(ScenarioError, match=r"^grid\.train\.lr: "):
        benchmark.check_pilots(study(grid={"train.lr": [0.1, 0.2]}))
    for key in ("train.lr", "train.momentum", "train.server.lr"):
        with pytest.raises(ScenarioError, match=rf"^--set: {key}: ".replace(".", r"\.")):
            benchmark.check_pilots(parse(SCENARIO, overrides=[f"{key}=0.1"]))


def test_nothing_is_chosen_on_the_test_set():
    with pytest.raises(ScenarioError, match=r"data\.validation: is missing"):
        benchmark.check_pilots(study(data={"name": "digits", "train_samples": 120, "test_samples": 60}))


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
