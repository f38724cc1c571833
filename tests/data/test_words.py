"""Words of tweets, comments and posts, from small files in the published forms."""

import json

import numpy as np
import pytest
import torch
from refusals import refused

from sfl_sim.data.loading import load
from sfl_sim.data.words import COMMENT, PAD, POST, TWEET
from sfl_sim.errors import ScenarioError


def write(root, name, **parts):
    for part, users in parts.items():
        folder = root / name / part
        folder.mkdir(parents=True)
        content = {"users": list(users), "num_samples": [], "user_data": users}
        (folder / f"all_{part}.json").write_text(json.dumps(content))


def tweet(text):
    return ["2087", "Sat May 16 23:58:44 UTC 2009", "NO_QUERY", "robot", text, "training"]


def in_words(data, x):
    names = data.label_names if len(data.label_names) > 2 else NAMES
    return [" ".join(names[token] for token in row if token) for row in x.tolist()]


NAMES = (PAD, "<UNK>", "good", "!", "is", "lyx", "not")
"""Vocabulary of the tweets below: by frequency, then by name."""


def test_a_tweet_is_its_first_words_and_a_mood(tmp_path):
    long = " ".join(["good"] * 40)
    train = {"a": {"x": [tweet("Lyx is good!"), tweet(long)], "y": [1, 1]}, "b": {"x": [tweet("NOT good !")], "y": [0]}}
    test = {"a": {"x": [tweet("is it good")], "y": [1]}, "b": {"x": [tweet("not")], "y": [0]}}
    write(tmp_path, "sent140", train=train, test=test)
    data = load("sent140", root=tmp_path)
    assert data.x_train.shape == (3, TWEET)
    assert in_words(data, data.x_train) == ["lyx is good !", " ".join(["good"] * TWEET), "not good !"]
    assert in_words(data, data.x_test) == ["is <UNK> good", "not"]
    assert data.y_train.tolist() == [1, 1, 0]
    assert (data.label_names, data.owner_names) == (("negative", "positive"), ("a", "b"))
    assert torch.equal(data.owners, torch.tensor([0, 0, 1]))


def comment(*words):
    """One comment as LEAF's preprocess.py writes it."""
    read, said = ["<BOS>", *words, "<EOS>"], [*words, "<EOS>", PAD]
    rest = [PAD] * (-len(read) % COMMENT)
    rows = np.array([read + rest, said + rest]).reshape(2, -1, COMMENT).tolist()
    return rows[0], {"target_tokens": rows[1], "count_tokens": [], "score": 3}


def test_a_comment_is_pieces_of_ten_words_with_the_next_one(tmp_path):
    words = [f"w{i}" for i in range(12)]
    of_a, about_a = comment(*words)
    of_b, about_b = comment("w1", "w1")
    users = {"1": {"x": [of_a], "y": [about_a]}, "2": {"x": [of_b, of_b], "y": [about_b, about_b]}}
    write(tmp_path, "reddit", train=users, test=users)
    data = load("reddit", root=tmp_path)
    assert in_words(data, data.x_train)[:3] == [
        "<BOS> " + " ".join(words[:9]), "w9 w10 w11 <EOS>", "<BOS> w1 w1 <EOS>",
    ]  # fmt: skip
    assert [data.label_names[label] for label in data.y_train] == ["w9", PAD, PAD, PAD]
    assert data.label_names[:4] == (PAD, "<UNK>", "w1", "<BOS>"), "by frequency"
    whole = data.predicting_all()
    assert whole.x_train.shape == (4, COMMENT + 1)
    assert whole.label_names == ("1", "2")


def test_what_is_wrong_in_a_file_is_said(tmp_path):
    write(tmp_path, "sent140", train={"a": {"x": [tweet("hm")], "y": [4]}}, test={})
    with refused("data.name", says="0 nor 1"):
        load("sent140", root=tmp_path)
    short = {"a": {"x": [["few"]], "y": [{"target_tokens": [["few"]]}]}}
    write(tmp_path, "reddit", train=short, test=short)
    with pytest.raises(ScenarioError, match=f"a sequence is not {COMMENT} words"):
        load("reddit", root=tmp_path)


def test_posts_of_stack_overflow_are_cut_after_their_twentieth_word(tmp_path):
    h5py = pytest.importorskip("h5py")
    (tmp_path / "stackoverflow").mkdir()
    posts = {"train": [b"how do i", b" ".join([b"long"] * 50)], "test": [b"how do you"]}
    for part, texts in posts.items():
        with h5py.File(tmp_path / "stackoverflow" / f"stackoverflow_{part}.h5", "w") as file:
            for user in ("00001", "00002" if part == "train" else "00003"):
                file.create_dataset(f"examples/{user}/tokens", data=np.array(texts, dtype=object))
    data = load("stackoverflow", root=tmp_path)
    assert data.owner_names == ("00001",), "who is in both files"
    assert data.x_train.shape == (2, POST)
    assert in_words(data, data.x_train) == ["<BOS> how do i <EOS>", "<BOS> " + " ".join(["long"] * (POST - 1))]
    assert [data.label_names[label] for label in data.y_train] == [PAD, "long"]
    assert in_words(data, data.x_test) == ["<BOS> how do <UNK> <EOS>"]


def test_a_file_of_another_kind_is_told(tmp_path):
    pytest.importorskip("h5py")
    with pytest.raises(ScenarioError, match=r"stackoverflow_train.h5 is missing"):
        load("stackoverflow", root=tmp_path)
    (tmp_path / "stackoverflow").mkdir()
    (tmp_path / "stackoverflow" / "stackoverflow_train.h5").write_text("no HDF5")
    with pytest.raises(ScenarioError, match="is no file of TensorFlow Federated"):
        load("stackoverflow", root=tmp_path)
