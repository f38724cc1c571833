"""Repricing: a run walked again in another world says what a run trained there says, or that it must be trained."""

import json
import shutil
from types import SimpleNamespace

import pandas as pd
import pytest
from drawn import at_night, drawn

from sfl_sim.cli import main
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.methods import METHODS
from sfl_sim.ops import SERVER, On
from sfl_sim.report.pages.run import write_report
from sfl_sim.runs.news import Ended, silent
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import load, parse
from sfl_sim.scenario.own_code import hand_over
from sfl_sim.sim.orders import ARRIVAL_DRIVEN
from sfl_sim.store.files import read_manifest
from sfl_sim.studies.reprice import OF_TRAINING, Repricing, reprice_trial
from sfl_sim.studies.retrace import TracedOperation, difference, records_of
from sfl_sim.studies.train import run_study
from sfl_sim.studies.trained import TrainedRun

pytestmark = pytest.mark.usefixtures("no_reports")

SMALL_STEPS = {"train.lr": 1e-4}
"""For slopes along random directions, which are long."""
NAMED = ["splitfed_v1", "splitfed_v2", "hydra", "korea", "multiexit"]
"""Methods that tests of this file name, and one with exits."""
SPECIAL = [
    {"method.name": "splitfed_v2", "server.order": ["cyclic", "random_job"]},
    {"method.name": "mergesfl", "method.batch_regulation": "time"},
    {"method.name": "korea", "method.proportion": "fixed", "method.patience_s": 0.05},
    {"method.name": "korea", "method.patience_s": 0.05},
    {"method.name": "splitfed_v1", "wire.up": "randtopk", "wire.update": "topk", "wire.error_feedback": True},
    {"method.name": "splitfed_v1", "wire.up": {"kind": "delta", "inner": "int8"}, "wire.down": "int4"},
    {"method.name": "splitfed_v1", "clients.choice": "oort"},
    {"method.name": "splitfed_v3", "clients.overcommit": 1},
]
N_CLIENTS, ROUNDS = 6, 3
SCENARIO = {
    "name": "small",
    "data": {"name": "digits", "train_samples": 96, "test_samples": 40, "partition": {"kind": "iid"}},
    "model": {"name": "cnn_small", "cut": 1},
    "clients": {
        "count": N_CLIENTS,
        "participation": 0.5,
        "compute": {"macs_per_s": 1e8},
        "network": {"uplink_bps": [1e6, 2e6, 3e6, 4e6, 5e6, 6e6], "downlink_bps": 1e7},
    },
    "train": {"rounds": ROUNDS, "batch_size": 8},
    "report": {"target_accuracy": 0.1},
}
ELSEWHERE = ["clients.network.uplink_bps=[6.0e+6, 5.0e+6, 4.0e+6, 3.0e+6, 2.0e+6, 1.0e+6]"]
"""World in which the client that came last comes first."""


def methods(names):
    return [{"method.name": name, **({} if METHODS[name].keeps_graphs else SMALL_STEPS)} for name in names]


def write(place, changes=None):
    path = place / "scenario.yaml"
    path.write_text(json.dumps(SCENARIO | (changes or {})))
    return path


def train(path, out, overrides=(), notify=silent):
    run_study(load(path, overrides), out, Settings(device="cpu", threads=1), notify)
    return out


def silently(run, overrides, out):
    return Repricing(run, overrides).run(out, silent).folder


def thrice(path, place, elsewhere):
    """A run, one in the other world, and the first in the world of the second."""
    run, fresh = train(path, place / "run"), train(path, place / "fresh", elsewhere)
    return run, fresh, silently(run, elsewhere, place / "repriced")


def verdicts(folder):
    found = json.loads((folder / "manifest.json").read_text())["repriced"]
    return {verdict["variant"]: verdict for verdict in found}


def summaries(folder):
    return {each["name"]: each for each in json.loads((folder / "summary.json").read_text())["variants"]}


def rounds(folder, variant):
    return pd.read_parquet(folder / "rounds.parquet", filters=[("variant", "==", variant)])


def of_its_own(rows):
    """Leave out the columns that only other variants of the run have."""
    return rows.dropna(axis="columns", how="all")


def participants(folder, variant):
    wanted = [("variant", "==", variant)]
    return pd.read_parquet(folder / "participants.parquet", columns=["round", "client"], filters=wanted)


def served(folder, variant):
    """The clients of the jobs at the server, in the order of service."""
    wanted = [("variant", "==", variant), ("node", "==", "server"), ("kind", "==", "train")]
    jobs = pd.read_parquet(folder / "ops.parquet", filters=wanted)
    return jobs.sort_values("started_s")["client"].tolist()


@pytest.fixture(scope="module")
def folders(tmp_path_factory, pytestconfig):
    """A run of all methods (eight with a commit), one in the other world, and the first in the world of the second."""
    others = [name for name in METHODS if name not in NAMED]
    points = methods([*NAMED, *(others if at_night(pytestconfig) else drawn(others, 3, "reprice"))]) + SPECIAL
    place = tmp_path_factory.mktemp("repriced")
    changes = {"report": {**SCENARIO["report"], "exits_every": 2}, "train": {**SCENARIO["train"], "momentum": 0.9}}
    path = write(place, {"grid": points, **changes})
    return thrice(path, place, ELSEWHERE)


@pytest.mark.night
@pytest.mark.drawn
def test_learning_holds_if_and_only_if_training_in_the_other_world_gives_the_same_weights(folders):
    run, fresh, repriced = folders
    there, here = summaries(run), summaries(fresh)
    holds = {name for name, verdict in verdicts(repriced).items() if verdict["reason"] is None}
    assert holds == {name for name in there if there[name]["weights_digest"] == here[name]["weights_digest"]}
    source = json.loads((repriced / "manifest.json").read_text())["repriced_from"]
    assert set(source["changes"]) == {setting.partition("=")[0] for setting in ELSEWHERE}
    in_doubt = {variant.name for variant in load(run / "scenario.yaml").variants if depends_on_time(variant.scenario)}
    assert set(there) - holds == in_doubt != set()


def depends_on_time(scenario):
    """Say if the result does; a server whose order is fixed takes the order of service from it."""
    clients = scenario.clients
    if clients.choice or clients.overcommit:
        return True
    return Experiment(scenario, None).method.depends_on_time and scenario.server.order in ARRIVAL_DRIVEN


@pytest.mark.night
@pytest.mark.drawn
def test_what_holds_is_what_a_run_in_the_other_world_says(folders):
    _, fresh, repriced = folders
    there, here = summaries(fresh), summaries(repriced)
    for name, verdict in verdicts(repriced).items():
        if verdict["reason"] is None:
            pd.testing.assert_frame_equal(of_its_own(rounds(fresh, name)), of_its_own(rounds(repriced, name)))
            pd.testing.assert_frame_equal(participants(fresh, name), participants(repriced, name))
            assert here[name] == {key: value for key, value in there[name].items() if key != "key"}


def test_a_method_that_goes_by_what_it_reads_goes_the_same_way(folders):
    """KoReA-SFL's proportion of replay follows a gradient norm, and bytes and times follow the proportion."""
    run, _, repriced = folders
    proportion = rounds(repriced, "korea")["replay_proportion"]
    assert proportion.nunique() > 1
    assert proportion.equals(rounds(run, "korea")["replay_proportion"])
    assert len(pd.read_parquet(run / "reads.parquet", filters=[("variant", "==", "korea")])) == 3 * ROUNDS


def test_times_are_those_of_the_other_world_where_learning_does_not_hold(folders):
    _, fresh, repriced = folders
    for name in ("splitfed_v2", "hydra", "mergesfl, time", "korea, fixed, patience_s=0.05"):
        assert summaries(fresh)[name]["timeline_digest"] == summaries(repriced)[name]["timeline_digest"]
        assert rounds(repriced, name)[["accuracy", "loss", "performance_gap"]].isna().all(axis=None)
        assert summaries(repriced)[name]["accuracy"] is None
    assert verdicts(repriced)["splitfed_v2"]["after_s"] == rounds(fresh, "splitfed_v2")["ended_s"].max()


def test_the_reason_is_the_first_turn_that_would_be_another_client_s(folders):
    run, fresh, repriced = folders
    turns = zip(served(fresh, "splitfed_v2"), served(run, "splitfed_v2"), strict=True)
    ours, theirs = next((ours, theirs) for ours, theirs in turns if ours != theirs)
    reason = f"round 1: client {ours} would be served before client {theirs}"
    assert verdicts(repriced)["splitfed_v2"]["reason"] == reason


def test_what_belongs_to_no_client_is_named_without_one():
    weights, average = (SimpleNamespace(name=name) for name in ("weights", "average"))
    theirs, ours = (TracedOperation(step.name.encode(), b"", On(SERVER, step, None)) for step in (weights, average))
    assert difference(2, [theirs], [ours]) == "round 2: average would not be the same"


def test_nothing_is_guessed_after_a_number_that_nobody_knows(folders):
    """The norm changes if other assistants are late, and with it the proportion."""
    *_, repriced = folders
    assert "korea, patience_s=0.05" not in summaries(repriced)
    assert verdicts(repriced)["korea, patience_s=0.05"]["rounds"] == 0


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def slower(client):
    """A world in which the messages of one client take a second longer."""
    rates = SCENARIO["clients"]["network"]["uplink_bps"]
    return [f"clients.network.uplink_bps={[1e5 if c == client else rate for c, rate in enumerate(rates)]}"]


def test_rounds_hold_until_the_first_in_which_the_order_is_another(place):
    """A slow client changes no round until it takes part."""
    path = write(place)
    experiment = Experiment(load(path).variants[0].scenario, device=None)
    first, second, third = (set(walked.clients) for walked in experiment.walk.rounds())
    (late, *_) = third - first - second
    _, fresh, repriced = thrice(path, place, slower(late))
    (verdict,) = verdicts(repriced).values()
    assert verdict["valid_rounds"] == 2
    assert verdict["reason"].startswith("round 3: client ")
    there, here = (rounds(folder, "splitfed_v2") for folder in (fresh, repriced))
    pd.testing.assert_frame_equal(there[:2], here[:2], check_dtype=False)
    assert there["ended_s"].equals(here["ended_s"])
    assert here["accuracy"].isna().tolist() == [False, False, True]


def test_an_interrupted_run_is_repriced_as_far_as_it_came(place):
    def stop(news):
        if isinstance(news, Ended) and news.round.row["round"] == 2:
            raise KeyboardInterrupt

    path = write(place, {"method": {"name": "splitfed_v1"}})
    interrupted = train(path, place / "run", notify=stop)
    repriced = silently(interrupted, ELSEWHERE, place / "repriced")
    fresh = train(path, place / "fresh", ELSEWHERE)
    pd.testing.assert_frame_equal(rounds(fresh, "splitfed_v1")[:2], rounds(repriced, "splitfed_v1"), check_dtype=False)
    assert "the run that is repriced is interrupted" in read_manifest(repriced)["notes"][-1]


LEARNING = {"method": {"name": "splitfed_v1"}, "train": SCENARIO["train"] | {"lr": 0.2}}
BY_TIME = LEARNING | {"train": LEARNING["train"] | {"stop": {"time_s": 1.0}}}
"""Training that ends with its second round, after 1.2 s."""


def test_a_training_that_ends_in_the_same_round_elsewhere_is_what_a_run_there_says(place):
    path, elsewhere = write(place, BY_TIME), ["clients.network.scale=0.9"]
    run, fresh, repriced = thrice(path, place, elsewhere)
    pd.testing.assert_frame_equal(rounds(fresh, "splitfed_v1"), rounds(repriced, "splitfed_v1"))
    there, here = (summaries(folder)["splitfed_v1"] for folder in (fresh, repriced))
    assert here == {key: value for key, value in there.items() if key != "key"}
    assert (here["rounds"], here["stopped"]) == (2, "1 s have passed")
    assert rounds(run, "splitfed_v1")["accuracy"].nunique() == 2  # its last is not its median


def test_a_training_that_ends_sooner_elsewhere_ends_there_with_what_was_learned_until_then(place):
    path, elsewhere = write(place, BY_TIME), ["clients.network.scale=0.25"]
    _, fresh, repriced = thrice(path, place, elsewhere)
    pd.testing.assert_frame_equal(rounds(fresh, "splitfed_v1"), rounds(repriced, "splitfed_v1"))
    there, here = (summaries(folder)["splitfed_v1"] for folder in (fresh, repriced))
    assert (here["rounds"], verdicts(repriced)["splitfed_v1"]["reason"]) == (1, None)
    ours, theirs = ({key: each[key] for key in there.keys() - {"key", *OF_TRAINING}} for each in (here, there))
    assert ours == theirs


def test_a_training_that_would_go_on_elsewhere_must_be_trained(place):
    run = train(write(place, BY_TIME), place / "run")
    repriced = silently(run, ["clients.network.scale=4"], place / "repriced")
    verdict = verdicts(repriced)["splitfed_v1"]
    assert (verdict["rounds"], verdict["valid_rounds"]) == (2, 2)
    assert verdict["reason"] == "round 3: training would go on"
    assert summaries(repriced)["splitfed_v1"]["accuracy"] is None
    assert rounds(repriced, "splitfed_v1")["accuracy"].equals(rounds(run, "splitfed_v1")["accuracy"])


@pytest.mark.parametrize(
    ("scale", "reason"), [(4, "round 2: training would go on"), (0.25, "round 1: training would end")]
)
def test_what_follows_the_last_round_is_in_no_other(scale, reason, place):
    """Clients fine-tune their models after the last round."""
    method = {"name": "splitgp", "ft_steps": 1, "ft_lr": 0.01}
    run = train(write(place, BY_TIME | {"method": method}), place / "run")
    assert summaries(run)["splitgp"]["rounds"] == 2
    repriced = silently(run, [f"clients.network.scale={scale}"], place / "repriced")
    assert verdicts(repriced)["splitgp"]["reason"] == reason


def test_nobody_knows_whether_another_training_would_have_reached_the_accuracy(place):
    changes = LEARNING | {"method": {"name": "splitfed_v2"}, "train": LEARNING["train"] | {"stop": {"accuracy": 0.05}}}
    run = train(write(place, changes), place / "run")
    repriced = silently(run, ELSEWHERE, place / "repriced")
    assert summaries(run)["splitfed_v2"]["stopped"]
    unknown = summaries(repriced)["splitfed_v2"]
    assert unknown["stopped"] is unknown["accuracy"] is None


def test_a_training_that_one_s_own_function_ended_ends_there_elsewhere(place):
    changes = LEARNING | {"train": LEARNING["train"] | {"on_round_end": second}}
    run = run_study(parse(SCENARIO | changes), place / "run", Settings(device="cpu", threads=1), silent).folder
    repriced = silently(run, ELSEWHERE, place / "repriced")
    there, here = (summaries(folder)["splitfed_v1"] for folder in (run, repriced))
    assert verdicts(repriced)["splitfed_v1"]["reason"] is None
    figures = ("rounds", "stopped", "accuracy", "accuracy_spread", "weights_digest")
    assert [here[key] for key in figures] == [there[key] for key in figures]


def second(round, experiment):
    return round.row["round"] == 2


def test_before_and_after_are_the_times_to_the_same_target(place):
    run = train(write(place, LEARNING), place / "run")
    best = rounds(run, "splitfed_v1").nlargest(1, "accuracy").iloc[0]
    repriced = silently(run, [f"report.target_accuracy={best['accuracy']}"], place / "repriced")
    before_s = verdicts(repriced)["splitfed_v1"]["to_accuracy_before_s"]
    assert before_s == summaries(repriced)["splitfed_v1"]["time_to_accuracy_s"] == best["ended_s"]
    assert before_s != summaries(run)["splitfed_v1"]["time_to_accuracy_s"]


def test_the_target_is_that_of_the_trained_reference_though_it_must_be_trained_there(place):
    changes = {
        "grid": {"method.name": ["splitfed_v1", "splitfed_v2"]},
        "report": {"target_accuracy": {"share": 0.8, "of": "splitfed_v2"}},
    }
    run = train(write(place, LEARNING | changes), place / "run")
    repriced = silently(run, ELSEWHERE, place / "repriced")
    assert verdicts(repriced)["splitfed_v2"]["reason"]
    there, here = (summaries(folder)["splitfed_v1"] for folder in (run, repriced))
    assert here["target_accuracy"] == there["target_accuracy"] is not None
    assert here["rounds_to_accuracy"] == there["rounds_to_accuracy"]


def test_a_network_that_draws_makes_every_method_depend_on_the_order(place):
    hand_over("small_networks:dropping")
    path = write(place, {"method": {"name": "splitfed_v1"}, "model": {"factory": "small_networks:dropping"}})
    run, fresh, repriced = thrice(path, place, ELSEWHERE)
    assert summaries(run)["splitfed_v1"]["weights_digest"] != summaries(fresh)["splitfed_v1"]["weights_digest"]
    assert verdicts(repriced)["splitfed_v1"]["valid_rounds"] == 0
    again = silently(run, ["server.speedup=101"], place / "again")
    assert verdicts(again)["splitfed_v1"]["reason"] is None


def variant_of(run, name, overrides=()):
    return next(each for each in load(run / "scenario.yaml", overrides).variants if each.name == name)


def record_of(run, name):
    return next(each for (own, _), each in records_of(TrainedRun(run)).items() if own == name)


def test_one_cell_by_itself_is_that_of_the_folder(folders):
    run, _, repriced = folders
    name = "splitfed_v1"
    trial = reprice_trial(record_of(run, name), variant_of(run, name), variant_of(run, name, ELSEWHERE).scenario)
    assert trial.valid
    assert trial.rounds["ended_s"].tolist() == rounds(repriced, name)["ended_s"].tolist()
    assert trial.rounds["accuracy"].tolist() == rounds(run, name)["accuracy"].tolist()
    assert len(trial.ops) == len(pd.read_parquet(repriced / "ops.parquet", filters=[("variant", "==", name)]))
    with pytest.raises(ScenarioError, match=r"^method\.name: "):
        reprice_trial(record_of(run, name), variant_of(run, name), variant_of(run, "hydra").scenario)


def test_a_cell_of_which_nothing_is_known_has_no_rounds(folders):
    run, *_ = folders
    name = "korea, patience_s=0.05"
    trial = reprice_trial(record_of(run, name), variant_of(run, name), variant_of(run, name, ELSEWHERE).scenario)
    assert not trial.valid
    assert trial.rounds["accuracy"].empty
    assert trial.reason.endswith("round 1 depends on a number that only training can tell")


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("train.lr=0.1", "train.lr"),
        ("clients.participation=1", "clients.participation"),
        ("repeats=2", "grid"),
        ("clients.network=nowhere", "clients.network.profile"),
    ],
)
def test_what_would_have_to_be_trained_is_refused(folders, override, key):
    with pytest.raises(ScenarioError) as raised:
        silently(folders[0], [override], None)
    assert raised.value.key == key


def test_the_same_system_is_refused(folders):
    for same in ([], ["server.workers=1"]):
        with pytest.raises(ScenarioError, match=r"--set"):
            silently(folders[0], same, None)


def test_where_nothing_was_trained_nothing_can_hold(place):
    study = load(write(place, {"method": {"name": "splitfed_v1"}}), ())
    run_study(study, place / "run", Settings(timing_only=True, threads=1), silent)
    with pytest.raises(ScenarioError, match=r"^run: was timing-only"):
        silently(place / "run", ELSEWHERE, None)


def test_what_is_no_run_of_this_code_is_refused(folders, place):
    with pytest.raises(ScenarioError, match=r"^run: "):
        silently(place, ELSEWHERE, None)
    with pytest.raises(ScenarioError, match="repriced itself"):
        silently(folders[2], ELSEWHERE, None)
    run = train(write(place, {"method": {"name": "fedavg"}}), place / "run")
    shutil.copy(run / "manifest.json", place)
    scenario = (run / "scenario.yaml").read_text()
    (run / "scenario.yaml").write_text(scenario.replace("speedup: 100.0", "speedup: 90.0"))
    with pytest.raises(ScenarioError, match=r"SHA256SUMS"):
        silently(run, ELSEWHERE, place / "out")
    (run / "manifest.json").write_text("{")
    with pytest.raises(ScenarioError, match=r"manifest.json.* is not what the run has written"):
        silently(run, ELSEWHERE, place / "out")
    shutil.copy(place / "manifest.json", run)
    (run / "SHA256SUMS").unlink()
    with pytest.raises(ScenarioError, match=r"fedavg .*other code"):
        silently(run, ELSEWHERE, place / "out")
    assert not (place / "out").exists()


def test_the_command_prints_what_holds_and_the_page_says_it_first(place, monkeypatch, capsys):
    """A run of an earlier version does not say what its flows have read."""
    run = train(write(place, {"grid": {"method.name": ["splitfed_v1", "splitfed_v2", "korea"]}}), place / "run")
    monkeypatch.setattr("sfl_sim.report.pages.run.write_report", write_report)
    for file in ("reads.parquet", "SHA256SUMS"):
        (run / file).unlink()
    main(["reprice", str(run), "--set", ELSEWHERE[0]])
    *lines, path = capsys.readouterr().out.splitlines()
    assert path == "reports/small-repriced/report.html"
    printed = " ".join(" ".join(lines).split())
    assert "s valid" in printed
    assert "must be trained: round 1: client" in printed
    assert "korea (seed 0)" in printed
    above = (place / path).read_text().partition("<h2>Results</h2>")[0]
    assert "small: repriced from" in above
    assert "splitfed_v2 (seed 0) must be trained" in above
