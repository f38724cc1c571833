"""Trained weights as users take them away: their own module, files for plain torch, transformers and peft."""

import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import sfl_sim
from sfl_sim.build.setup import Setup
from sfl_sim.data.loading import load
from sfl_sim.data.own import as_dataset
from sfl_sim.engine import checkpointing
from sfl_sim.errors import ScenarioError
from sfl_sim.models.small import cnn_small
from sfl_sim.runs.news import Ended
from sfl_sim.runs.trial import Settings
from sfl_sim.scenario.load import parse
from sfl_sim.studies.train import run_study

pytestmark = pytest.mark.usefixtures("without_pages")

WORDS = {
    "name": "kept", "data": {"train_samples": 64, "test_samples": 16}, "clients": {"count": 2},
    "train": {"rounds": 4, "batch_size": 16},
}  # fmt: skip
X = torch.rand(5, 1, 8, 8)


class Blocks(nn.Module):
    """A user's own module, with a skip connection and batch norm."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.norm = nn.Linear(64, 8), nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 10)

    def forward(self, x):
        x = self.first(x.flatten(1)).relu()
        return self.last(x + self.norm(self.inner(x)))


def test_parts_and_whole_have_the_names_of_ones_own_module(tmp_path):
    results = sfl_sim.run(WORDS | {"model": {"factory": Blocks, "cut": "first"}}, out=tmp_path / "run")
    (folder,) = results.save_models(tmp_path / "files")
    assert folder.name == "splitfed_v2-seed0"
    one, two, whole = (load_file(folder / f"{name}.safetensors") for name in ("part-1", "part-2", "model"))
    assert one.keys() == {"first.weight", "first.bias"}
    assert one.keys() | two.keys() == whole.keys()
    plain, joined = Blocks(), Blocks()
    plain.load_state_dict(one | two)  # strictly
    joined.load_state_dict(whole)
    assert all(torch.equal(tensor, plain.state_dict()[name]) for name, tensor in joined.state_dict().items())
    trained = results.model()
    assert type(trained) is Blocks
    assert torch.equal(plain.eval()(X), trained(X))


def test_every_kth_model_is_kept_also_by_a_run_that_is_interrupted_and_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointing, "SHARE", 1e9)  # a checkpoint after every round
    words = WORDS | {"report": {"keep": 2}, "train": WORDS["train"] | {"rounds": 5}}
    whole = sfl_sim.run(words, out=tmp_path / "whole", device="cpu", threads=1)

    def pressed(news):
        if isinstance(news, Ended) and news.round.row["round"] == 3:
            raise KeyboardInterrupt

    settings = Settings(device="cpu", threads=1)
    interrupted = sfl_sim.load(run_study(parse(words), tmp_path / "run", settings, pressed).folder)
    assert len(interrupted.rounds) < 5
    resumed = sfl_sim.run(words, out=tmp_path / "run", resume=True, fresh=True, device="cpu", threads=1)
    with pytest.raises(ScenarioError) as refused:
        resumed.state_dict(round=3)
    assert (refused.value.key, refused.value.allowed) == ("round", ["2", "4", "5"])
    for round in (2, 4, None):
        ours, theirs = resumed.state_dict(round=round), whole.state_dict(round=round)
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    copied = sfl_sim.run(words | {"name": "copied"}, out=tmp_path / "copied", device="cpu", threads=1)
    early, late = (copied.state_dict(round=round)["fc.1.weight"] for round in (2, None))
    assert torch.equal(early, whole.state_dict(round=2)["fc.1.weight"])
    assert not torch.equal(early, late)


def test_the_best_round_is_chosen_on_validation_samples_and_its_model_is_kept(tmp_path):
    """Whatever the test set says, here random labels."""
    data = load("digits", train_samples=200, test_samples=20)
    x, y, x_test = data.x_train, data.y_train, data.x_test
    words = {
        "name": "best", "data": {"validation": {"share": 0.25}}, "clients": {"count": 2}, "report": {"keep": "best"},
        "model": {"factory": Blocks, "cut": 1}, "train": {"rounds": 12, "batch_size": 16, "lr": 0.1, "momentum": 0.9},
    }  # fmt: skip
    x, x_test = x.float() / 255, x_test.float() / 255
    results, other = (
        sfl_sim.run(words, data=(x, y, x_test, labels), out=tmp_path / name)
        for name, labels in (("right", data.y_test), ("wrong", data.y_test.flip(0)))
    )
    scores = results.rounds["validation_score"]
    best = results.summary["best_round"].iloc[0]
    assert best == scores.argmax() + 1 < 12
    assert other.summary["best_round"].iloc[0] == best
    assert other.summary["best_round_score"].iloc[0] < results.summary["best_round_score"].iloc[0]
    own = {"data.factory": as_dataset((x, y, x_test, data.y_test))}
    setup = Setup(parse(words, overrides=own).variants[0].scenario, pixels=True)
    aside = setup.validation
    assert len(aside) == 50
    assert not np.isin(np.concatenate(setup.shares), aside).any()
    model = results.model(round="best")
    right = model(x[aside]).argmax(1) == y[aside]
    assert right.float().mean().item() == pytest.approx(scores.max())
    last = results.model()(x[aside]).argmax(1) == y[aside]
    assert last.float().mean().item() == pytest.approx(scores.iloc[-1])


def test_nothing_is_chosen_by_the_test_set(tmp_path):
    with pytest.raises(ScenarioError) as refused:
        sfl_sim.run(WORDS | {"report": {"keep": "best"}}, out=tmp_path / "run")
    assert refused.value.key == "report.keep"
    plain = sfl_sim.run(WORDS, out=tmp_path / "plain")
    with pytest.raises(ScenarioError) as refused:
        plain.model(round="best")
    assert refused.value.key == "round"


def test_models_of_rounds_after_the_last_cannot_be_kept(tmp_path):
    with pytest.raises(ScenarioError) as refused:
        sfl_sim.run(WORDS | {"report": {"keep": 5}}, out=tmp_path / "run")
    assert (refused.value.key, refused.value.found) == ("report.keep", 5)


def test_models_of_variants_with_like_names_are_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    for place in ("a/links.csv", "a_links.csv"):
        Path(place).write_text("quantile,uplink_bps,downlink_bps\n0,1e6,1e6\n1,2e6,2e6\n")
    words = WORDS | {"grid": {"clients.network.profile": ["a/links.csv", "a_links.csv"]}}
    folders = sfl_sim.run(words, out="run").save_models("files")
    assert {folder.name for folder in folders} == {"a_links.csv-seed0", "a_links.csv-seed0-2"}


def test_parts_that_clients_keep_are_files_of_their_own(tmp_path):
    results = sfl_sim.run(WORDS | {"method": "splitfed_v3"}, out=tmp_path / "run")
    (folder,) = results.save_models(tmp_path / "files")
    names = {path.name for path in folder.iterdir()}
    assert names == {"part-1-client0.safetensors", "part-1-client1.safetensors", "part-2.safetensors"}
    assert results.model(client=1)(X).shape == (5, 10)


def test_ones_own_modules_may_be_called_like_what_clients_keep(tmp_path):
    def factory():
        first = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
        return nn.Sequential(OrderedDict(initial=first, client1=nn.Linear(8, 10)))

    results = sfl_sim.run(WORDS | {"model": {"factory": factory, "cut": 1}}, out=tmp_path / "run")
    assert {name.partition(".")[0] for name in results.state_dict()} == {"initial", "client1"}
    (folder,) = results.save_models(tmp_path / "files")
    assert {file.name for file in folder.iterdir()} == {f"{name}.safetensors" for name in ("part-1", "part-2", "model")}


def test_a_run_that_timed_alone_has_no_models(tmp_path):
    timed = sfl_sim.run(WORDS, out=tmp_path / "run", timing_only=True)
    with pytest.raises(ScenarioError) as refused:
        timed.save_models(tmp_path / "files")
    assert refused.value.key == "RUN"


def test_adapters_alone_make_the_trained_model_in_peft(tmp_path):
    """Here of convolutions and linear maps; their frozen weights are those with which training began."""
    peft = pytest.importorskip("peft")
    lora = {"rank": 2, "alpha": 6, "targets": ["conv2", "fc"]}
    words = WORDS | {"model": {"name": "cnn_small", "cut": 1}, "lora": lora, "train": WORDS["train"] | {"lr": 0.5}}
    results = sfl_sim.run(words, out=tmp_path / "run")
    (folder,) = results.save_models(tmp_path / "files")
    adapters = load_file(folder / "adapters" / "adapter_model.safetensors")
    assert all(".lora_A." in name or ".lora_B." in name for name in adapters)
    base, stored = cnn_small((1, 8, 8), 10), load_file(results.folder / "checkpoints" / "0000.safetensors")
    frozen = {name.partition(".")[2]: tensor for name, tensor in stored.items() if not name.endswith((".A", ".B"))}
    plain = {name.replace("parametrizations.", "").removesuffix(".original"): frozen[name] for name in frozen}
    base.load_state_dict(plain)
    before = base.eval()(X)
    with_adapters = peft.PeftModel.from_pretrained(base, folder / "adapters").eval()
    trained = results.model()(X)
    torch.testing.assert_close(with_adapters(X), trained)
    assert (trained - before).abs().max() > 1e-3


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")  # of transformers, which peft asks
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_what_a_language_model_has_learned_is_loaded_by_transformers_and_peft(tmp_path, kind):
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    sizes = {"gpt2": {"n_positions": 16, "n_embd": 12, "n_head": 3, "n_layer": 2, "bos_token_id": 0, "eos_token_id": 0},
             "llama": {"max_position_embeddings": 16, "hidden_size": 16, "num_attention_heads": 4,
                       "num_hidden_layers": 2, "intermediate_size": 20, "tie_word_embeddings": True}}  # fmt: skip
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, vocab_size=29, **sizes[kind])
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    x, y = torch.randint(29, (40, 9)), torch.randint(29, (40,))
    words = {
        "name": "tuned", "model": {"name": "hf", "path": str(tmp_path / "base"), "cut": "block1"},
        "data": {"targets": "all"}, "clients": {"count": 2}, "lora": {"rank": 2, "alpha": 6, "targets": ["q", "v"]},
        "train": {"rounds": 2, "batch_size": 8, "optimizer": "adam", "lr": 0.05},
    }  # fmt: skip
    results = sfl_sim.run(words, data=(x, y, x[:8], y[:8]), out=tmp_path / "run")
    (folder,) = results.save_models(tmp_path / "files")
    from_folder = transformers.AutoModelForCausalLM.from_pretrained
    trained = results.model()(x).logits
    assert torch.equal(from_folder(folder)(x).logits, trained)
    base = from_folder(tmp_path / "base")
    assert (base(x).logits - trained).abs().max() > 1e-3
    tuned = peft.PeftModel.from_pretrained(base, folder / "adapters").eval()
    torch.testing.assert_close(tuned(x).logits, trained)
    target = {"gpt2": r"transformer\.h\.0\.attn\.c_attn", "llama": r"model\.layers\.0\.self_attn\.q_proj"}[kind]
    assert target in json.loads((folder / "adapters" / "adapter_config.json").read_text())["target_modules"]
