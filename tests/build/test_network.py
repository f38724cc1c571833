"""Initial weights: those of an earlier run, or of another seed, the same at every cut."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sfl_sim import run
from sfl_sim.engine.experiment import Experiment
from sfl_sim.errors import ScenarioError
from sfl_sim.runs.cache_key import trial_key
from sfl_sim.scenario.load import parse
from sfl_sim.studies.train import check

pytestmark = pytest.mark.usefixtures("without_pages")

CPU = torch.device("cpu")
SMALL = {
    "data": {"train_samples": 60, "test_samples": 40},
    "model": {"name": "cnn_patches_bn", "cut": 1},
    "clients": {"count": 2},
    "train": {"rounds": 1, "batch_size": 10},
    "method": "splitfed_v1",
}


def variant(**changes):
    (only,) = parse(SMALL | changes).variants
    return only.scenario


def at_first(**changes):
    """The whole model before its first round, by name."""
    parts = Experiment(variant(**changes), CPU).method.model()
    return {name: tensor for part in parts for name, tensor in part.weights.named_tensors()}


def model(**changes):
    return SMALL["model"] | changes


def stored(folder):
    """The final model of a run, by name."""
    (file,) = Path(folder, "checkpoints").glob("*.safetensors")
    return {name.partition(".")[2]: tensor for name, tensor in load_file(file).items()}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "earlier"
    run(SMALL, out=folder)
    return str(folder)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_training_begins_where_an_earlier_run_has_ended_at_every_cut(earlier, cut):
    wanted, begun = stored(earlier), at_first(model=model(cut=cut, init={"run": earlier}))
    assert begun.keys() == wanted.keys()
    assert all(torch.equal(begun[name], wanted[name]) for name in wanted)


def test_a_seed_of_their_own_draws_initial_weights_alone():
    plain = at_first(seed=5)
    for seed in (1, 2):
        begun = at_first(seed=seed, model=model(init={"seed": 5}))
        assert all(torch.equal(begun[name], plain[name]) for name in plain)


def test_exits_are_drawn_with_that_seed_too():
    ours, theirs = (
        Experiment(variant(seed=seed, method="multiexit", model=model(init={"seed": 5})), CPU).method.h
        for seed in (1, 2)
    )
    for depth, exit in ours.items():
        assert torch.equal(exit.weights.flat, theirs[depth].weights.flat)


def test_other_weights_in_the_folder_make_another_trial(earlier, tmp_path):
    scenario = variant(model=model(init={"run": earlier}))
    before = trial_key(scenario, "test")
    run(SMALL | {"seed": 1}, out=tmp_path / "other")
    other = variant(model=model(init={"run": str(tmp_path / "other")}))
    assert len({before, trial_key(other, "test"), trial_key(variant(), "test")}) == 3
    assert trial_key(scenario, "test") == before


def test_a_folder_that_is_no_run_is_refused():
    with pytest.raises(ScenarioError) as refused:
        at_first(model=model(init={"run": "nowhere"}))
    assert (refused.value.key, refused.value.found) == ("model.init.run", "nowhere")


def test_a_run_of_another_network_of_several_models_or_of_none_is_refused(earlier, tmp_path):
    run(SMALL | {"repeats": 2}, out=tmp_path / "two")
    run(SMALL, out=tmp_path / "none", timing_only=True)
    for name, folder, told in (
        ("cnn_small", earlier, "another network"),
        ("cnn_patches_bn", tmp_path / "two", "2 models"),
        ("cnn_patches_bn", tmp_path / "none", "nothing"),
    ):
        with pytest.raises(ScenarioError, match=told) as refused:
            check(parse(SMALL | {"model": {"name": name, "cut": 1, "init": {"run": str(folder)}}}), CPU)
        assert refused.value.key == "model.init.run"


def test_a_damaged_model_is_named(earlier, tmp_path):
    folder = shutil.copytree(earlier, tmp_path / "run", ignore=shutil.ignore_patterns("SHA256SUMS"))
    (file,) = (folder / "checkpoints").glob("*.safetensors")
    file.write_bytes(b"\xff" * 100)
    with pytest.raises(ScenarioError, match=r"model\.init\.run: is damaged: .*safetensors'"):
        check(parse(SMALL | {"model": model(init={"run": str(folder)})}), CPU)


def test_timing_alone_needs_no_earlier_run():
    scenario = variant(model=model(init={"run": "nowhere"}))
    (round,) = Experiment(scenario, None).rounds()
    assert round.row["ended_s"] > 0
    assert trial_key(scenario, "timing", pixels=False)


def test_a_config_in_a_folder_is_part_of_the_key_with_its_weights_if_it_trains(tmp_path):
    config = {"model_type": "gpt2", "vocab_size": 9, "n_positions": 8, "n_embd": 8, "n_head": 2, "n_layer": 1}
    keys = []
    for heads, weight in [(2, 0.0), (4, 0.0), (4, 1.0)]:
        (tmp_path / "config.json").write_text(json.dumps(config | {"n_head": heads}))
        save_file({"wte.weight": torch.full((9, 8), weight)}, tmp_path / "model.safetensors")
        scenario = variant(model={"name": "hf", "path": str(tmp_path)})
        keys.append([trial_key(scenario, "test", pixels=pixels) for pixels in (False, True)])
    timed, trained = zip(*keys, strict=True)
    assert timed[0] != timed[1] == timed[2]
    assert len(set(trained)) == 3


@pytest.mark.parametrize("method", ["splitfed_v1", "splitfrozen"])
def test_training_goes_on_from_a_fine_tuned_model_whose_adapters_are_added(tmp_path, method):
    targets = ["conv2", "fc2"]
    run(SMALL | {"method": method, "lora": {"rank": 2, "alpha": 3, "targets": targets}}, out=tmp_path / "tuned")
    tuned = stored(tmp_path / "tuned")
    adapted = [name.removesuffix(".0.B") for name in tuned if name.endswith(".0.B")]
    assert adapted
    begun = at_first(model=model(init={"run": str(tmp_path / "tuned")}))
    for name in adapted:
        weight, a, b = (tuned[f"{name}.{end}"] for end in ("original", "0.A", "0.B"))
        assert b.any()
        merged = begun[name.replace("parametrizations.", "")]
        torch.testing.assert_close(merged, weight + 1.5 * (b @ a).view_as(weight))
    check(parse(SMALL | {"model": model(init={"run": str(tmp_path / "tuned")}), "lora": {"targets": targets}}), CPU)
    other = {"name": "cnn_small", "init": {"run": str(tmp_path / "tuned")}}
    with pytest.raises(ScenarioError, match="another network"):
        check(parse(SMALL | {"model": other}), CPU)


def test_blocks_before_a_frozen_cut_are_found_too(tmp_path):
    """There q and v have the names of targets, and no adapters."""
    words = {
        "data": {"name": "synthetic", "shape": [4], "n_labels": 5, "samples": 20, "test_samples": 5},
        "model": {"name": "char_transformer", "cut": "block2"},
        "clients": {"count": 2},
        "train": {"rounds": 1, "batch_size": 10},
    }
    run(words | {"method": "splitfrozen", "lora": {"rank": 1}, "seed": 3}, out=tmp_path / "tuned")
    tuned = stored(tmp_path / "tuned")
    begun = {**words, "model": words["model"] | {"init": {"run": str(tmp_path / "tuned")}}, "method": "splitfed_v1"}
    begun = at_first(**begun)
    same = [name for name in tuned if name in begun]
    assert any(name.startswith("block1.") for name in same)
    assert all(torch.equal(begun[name], tuned[name]) for name in same)
