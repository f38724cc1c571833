"""Token data sets of Hugging Face: sequences of unequal lengths, padded mini-batch by mini-batch."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from refusals import refused
from torch.nn.functional import cross_entropy

import sfl_sim
from sfl_sim.data.batches import ClientData, Images
from sfl_sim.data.hugging_face import hf, of_tokens
from sfl_sim.data.own import as_dataset
from sfl_sim.goals import NO_TOKEN, Goal
from sfl_sim.methods import METHODS
from sfl_sim.models.language import Gpt2
from sfl_sim.models.network import Network
from sfl_sim.testing import CPU, Case, Task, World, check_bytes, check_resume, check_timing_only

KEY, VOCABULARY = "data.path", 9
ROWS = {
    "input_ids": [[3, 1, 4, 1, 5], [9, 2], [0, 6, 5, 0]],
    "attention_mask": [[1, 1, 1, 1, 1], [1, 1], [0, 1, 1, 0]],
    "labels": [[-100, -100, 4, 1, 5], [9, 2], [-100, 6, 5, -100]],
}


def drawn(n: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, rng.integers(3, 9)).tolist() for _ in range(n)]


def stored(folder: Path, train: dict, test: dict | None = None) -> Path:
    """Write both parts as files of the hub are named."""
    (folder / "data").mkdir()
    for part, columns in (("train", train), ("test", test or train)):
        pq.write_table(pa.table(columns), folder / "data" / f"{part}-00000-of-00001.parquet")
    return folder


def batches_of(data) -> list[tuple[list, list]]:
    images = Images(data, CPU, torch.float32, channels_last=False, augment=False)
    clients = ClientData([np.arange(len(data.x_train))], 2, images=images, lengths=data.lengths)
    return [(batch, *batch.load()) for batch in clients.batches(0, 1)]


def test_what_a_tokenizer_leaves_is_read_and_padded_to_the_longest_of_a_mini_batch(tmp_path):
    data = hf(stored(tmp_path, ROWS))
    assert data.goal is Goal.TOKENS
    assert data.lengths.tolist() == [4, 1, 1]  # 0 6 5 0 is 6 5 by its mask, and the last token is read by nobody
    known = {3: ([1, 4, 1], [NO_TOKEN, 4, 1, 5]), 9: ([], [2]), 6: ([], [5])}
    for batch, x, targets in batches_of(data):
        assert x.shape == targets.shape == (batch.samples, batch.length)
        assert batch.length == max(len(known[first][1]) for first in x[:, 0].tolist())
        for tokens, wanted in zip(x.tolist(), targets.tolist(), strict=True):
            rest, expected = known[tokens[0]]
            n = len(expected)
            assert tokens[1:n] == rest
            assert wanted == expected + [NO_TOKEN] * (batch.length - n)


def test_a_longest_length_cuts_what_is_longer(tmp_path):
    data = hf(stored(tmp_path, {"input_ids": ROWS["input_ids"]}), shape=[3])
    assert data.sample_shape == (3,)
    assert data.lengths.tolist() == [3, 1, 3]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"text": ["a b"]}, "has no column input_ids in its part `train`; data.tokenizer reads its column text"),
        ({"input_ids": [[1]]}, "training sequence 0 has no token to predict"),
        ({"input_ids": [[1, 2], [3, -4]]}, "training sequence 1 has input_ids that are no tokens"),
        ({"input_ids": [[1, 2], None]}, "training sequence 1 has input_ids that are no tokens"),
        ({"input_ids": [1, 2]}, "training sequence 0 has input_ids that are no tokens"),
        ({"input_ids": [[1, 2**32 + 5]]}, "training sequence 0 has input_ids that are no tokens"),
        ({"input_ids": [[1, 2]], "labels": [[1]]}, "another number of input_ids than of attention_mask or labels"),
        ({"input_ids": [[1, 2]], "labels": [[2, 1]]}, "labels that are neither its input_ids nor -100"),
        ({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 0, 1]]}, "an attention_mask with zeros between ones"),
        ({"input_ids": [[1, 2]], "labels": [[-100, -100]]}, "has no token to predict"),
    ],
)
def test_what_cannot_be_read_is_said_with_its_place(tmp_path, columns, problem):
    with refused(KEY, problem):
        hf(stored(tmp_path, columns))


def test_files_that_do_not_belong_together_are_told(tmp_path):
    folder = stored(tmp_path, {"input_ids": [[1, 2]]})
    pq.write_table(pa.table({"input_ids": [["a"]]}), folder / "data" / "train-00001-of-00001.parquet")
    with refused(KEY, "unequal columns in its part `train`"):
        hf(folder)
    state = folder / "train" / "state.json"
    state.parent.mkdir()
    for content in ("{}", "[]"):
        state.write_text(content)
        with refused(KEY, "does not name its files"):
            hf(folder)


def test_a_missing_part_or_folder_is_named(tmp_path):
    with refused(KEY, "has no part `train`"):
        hf(tmp_path)
    with refused(KEY, "is no folder"):
        hf(tmp_path / "absent")
    with refused("data.tokenizer", "is no folder"):
        hf(tmp_path, tokenizer=tmp_path / "absent")


def test_saved_data_sets_are_those_in_memory(tmp_path):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    both = datasets.DatasetDict({part: datasets.Dataset.from_dict(ROWS) for part in ("train", "test")})
    both.save_to_disk(tmp_path / "saved")
    on_disk, in_memory = hf(tmp_path / "saved"), as_dataset(both)
    assert torch.equal(on_disk.x_train, in_memory.x_train)
    assert replace(on_disk, name="own data").digest() == in_memory.digest()


def test_a_text_is_read_by_the_tokenizer_of_a_folder(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: pip install '.[hf]'")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[hf]'")
    texts = ["to be or not to be", "that is the question"]
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.train_from_iterator(texts, tokenizers.trainers.WordLevelTrainer(special_tokens=["?"]))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?").save_pretrained(tmp_path / "words")
    data = hf(stored(tmp_path, {"text": texts}), tokenizer=tmp_path / "words")
    told = [" ".join(data.token_names[token] for token in row if token >= 0) for row in data.x_train.tolist()]
    assert told == texts


class Ragged(World):
    """The usual world with sequences of 3 to 8 tokens."""

    def work(self, device=CPU, cut=1, **settings):
        n = sum(self.samples)
        data = of_tokens("drawn", {"input_ids": drawn(n)}, {"input_ids": drawn(4)}, KEY)
        net = Network("tiny", Gpt2(VOCABULARY, dim=8, heads=2, blocks=2, ff=16), data.sample_shape, 9, torch.float64)
        source = device and Images(data, device, net.dtype, net.channels_last, augment=False)
        shares = np.split(np.arange(n), np.cumsum(self.samples)[:-1])
        settings.pop("build", None)
        dealt = ClientData(shares, 4, images=source or None, lengths=data.lengths)
        return Task(
            network=net, cuts=[cut] * len(shares), data=dealt,
            lr=0.1, momentum=0.9, label_names=data.label_names, label_counts=np.array([*zip(self.samples)]),
            device=device, **settings,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options"),
    [("fedavg", {}), ("splitfed_v2", {}), ("u_shaped", {}), ("cse_fsl", {"aux": 0}), ("fedbuff", {"buffer": 1})],
)
def test_bytes_and_times_follow_the_padded_length_with_and_without_training(name, options):
    kind = METHODS[name]
    case = Case(kind, kind.Options(**options))
    for check in (check_timing_only, check_bytes, check_resume):
        check(case, Ragged())


@pytest.mark.parametrize(
    ("name", "options"), [("mergesfl", {}), ("ho_sfl", {}), ("fsl_sage", {}), ("splitfrozen", {"send_once": True})]
)
def test_methods_that_need_one_length_say_why(name, options):
    kind = METHODS[name]
    with refused("method.name", "needs sequences of one length"):
        kind(Ragged().work(None), kind.Options(**options))


@pytest.mark.parametrize("length", [2, 5, 8])
def test_prices_of_a_length_are_those_of_a_network_for_it(length):
    sizes = Gpt2(VOCABULARY, dim=8, heads=2, blocks=2, ff=16)
    part, other = (Network("tiny", sizes, (t,), VOCABULARY).part(0, 2) for t in (8, length))
    assert part.at(length).work(3, 3) == other.work(3, 3)
    assert part.at(length).out_shape == other.out_shape == (length, 8)
    assert part.at(length).label_bytes == 8 * length


def test_a_model_that_takes_one_length_alone_is_told_the_other():
    class Fixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.position = torch.nn.Embedding(9, 4), torch.nn.Embedding(8, 4)

        def forward(self, x):
            return self.table(x) + self.position.weight

    net = Network("fixed", lambda shape, n: torch.nn.Sequential(Fixed(), torch.nn.Linear(4, n)), (8,), 9)
    with refused("model", "cannot take shorter sequences, of 5 tokens"):
        net.part(0, 1).at(5)


def test_training_is_that_of_a_plain_loop_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install '.[hf]'")
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "n_positions": 16, "n_embd": 12, "n_head": 3, "n_layer": 2, "bos_token_id": 0,
             "eos_token_id": 0, "tie_word_embeddings": False, "attn_pdrop": 0.0, "embd_pdrop": 0.0,
             "resid_pdrop": 0.0}  # fmt: skip
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes))
    theirs.save_pretrained(tmp_path / "model")
    rows, tests = drawn(12), drawn(6, seed=1)
    labels = [[NO_TOKEN, *row[1:]] if len(row) < 5 else [NO_TOKEN, NO_TOKEN, *row[2:]] for row in rows]
    folder = stored(tmp_path, {"input_ids": rows, "labels": labels}, {"input_ids": tests})
    scenario = {
        "data": {"name": "hf", "path": str(folder), "partition": [[*range(12)]]},
        "model": {"name": "hf", "path": str(tmp_path / "model"), "cut": 2},
        "method": "splitfed_v1", "train": {"rounds": 2, "batch_size": 4, "lr": 0.2},
    }  # fmt: skip
    results = sfl_sim.run(scenario)

    def loss_of(some, wanted):
        width = max(map(len, some))
        x, mask, y = (torch.full((len(some), width), fill) for fill in (0, 0, NO_TOKEN))
        for i, (row, label) in enumerate(zip(some, wanted, strict=True)):
            x[i, : len(row)], mask[i, : len(row)], y[i, : len(row)] = torch.tensor(row), 1, torch.tensor(label)
        return theirs(input_ids=x, attention_mask=mask, labels=y)

    shares = ClientData([np.arange(12)], 4, lengths=np.array([len(row) - 1 for row in rows]))
    optimiser = torch.optim.SGD(theirs.parameters(), lr=0.2)
    for number, told in enumerate(results.rounds.itertuples(), start=1):
        for batch in shares.batches(0, number):
            optimiser.zero_grad()
            loss_of([rows[i] for i in batch.numbers], [labels[i] for i in batch.numbers]).loss.backward()
            optimiser.step()
        with torch.no_grad():
            logits = [loss_of([row], [row]).logits[0, :-1] for row in tests]
        wanted = torch.tensor([token for row in tests for token in row[1:]])
        scores = torch.cat(logits)
        assert told.loss == pytest.approx(float(cross_entropy(scores, wanted)), abs=1e-6)
        assert told.accuracy == pytest.approx(float((scores.argmax(1) == wanted).float().mean()), abs=1e-6)
        assert told.perplexity == pytest.approx(float(cross_entropy(scores, wanted).exp()), rel=1e-6)


def test_a_run_says_the_same_times_trained_timed_and_varied(tmp_path):
    folder = stored(tmp_path, {"input_ids": drawn(16)}, {"input_ids": drawn(4)})
    scenario = {
        "data": {"name": "hf", "path": str(folder)}, "model": {"name": "gpt_small", "cut": 2}, "clients": {"count": 2},
        "method": "splitfed_v2", "train": {"rounds": 2, "batch_size": 2},
    }  # fmt: skip
    trained, timed = (sfl_sim.run(scenario, timing_only=is_timed) for is_timed in (False, True))
    assert trained.rounds["ended_s"].tolist() == timed.rounds["ended_s"].tolist()
    points = sfl_sim.whatif(scenario, vary={"model.cut": [1, 2]}).points
    (point,) = points[points["model.cut"] == 2].to_dict("records")
    assert point["round_s"] == pytest.approx(trained.rounds["ended_s"].iloc[-1] / 2)
    sent = trained.ops[trained.ops["kind"] == "smashed"]["bytes"]
    assert sent.nunique() > 2
    assert timed.ops["bytes"].tolist() == trained.ops["bytes"].tolist()
