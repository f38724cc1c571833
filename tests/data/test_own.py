"""Data of a user's own: what may be given, and what a slip is told in one line."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from refusals import refused
from torch.utils.data import DataLoader, TensorDataset

from sfl_sim.data.own import KEY, as_dataset, by_holder, read_indices
from sfl_sim.data.partition import partition
from sfl_sim.data.samples import Samples
from sfl_sim.errors import ScenarioError
from sfl_sim.goals import Goal
from sfl_sim.rng import stream

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (8, 4, 4)).astype(np.uint8)
RGB_LAST = np.zeros((8, 9, 9, 3), np.uint8)
TABLE = RNG.standard_normal((8, 5))
CLASSES = np.array([0, 1, 2, 0, 1, 2, 0, 1])


def test_grey_images_get_their_channel_and_are_normalised_like_others():
    data = as_dataset((GREY, CLASSES, GREY[:2], CLASSES[:2]))
    assert data.x_train.shape == (8, 1, 4, 4)
    assert data.x_train.dtype == torch.uint8
    assert data.mean == pytest.approx(GREY.mean() / 255)
    assert data.label_names == ("0", "1", "2")


def test_a_table_of_numbers_goes_in_as_it_is():
    data = as_dataset((TABLE, CLASSES, torch.from_numpy(TABLE[:2]), torch.tensor([1, 2])))
    assert data.mean is None
    assert torch.equal(data.x_train, torch.from_numpy(TABLE).float())
    assert data.y_test.tolist() == [1, 2]


def test_labels_are_numbered_in_their_order_and_keep_their_names():
    data = as_dataset((TABLE, np.array(list("cabcabca")), TABLE[:1], np.array(["d"])))
    assert data.label_names == ("a", "b", "c", "d")
    assert data.y_train.tolist() == [2, 0, 1, 2, 0, 1, 2, 0]
    assert data.y_test.tolist() == [3]
    of_pandas = as_dataset((TABLE, pd.Series(list("cabcabca"), dtype=object), TABLE[:1], pd.Series(["d"])))
    assert of_pandas.label_names == data.label_names
    assert torch.equal(of_pandas.y_train, data.y_train)


def test_torch_data_sets_are_gathered_with_the_names_of_their_classes():
    train = TensorDataset(torch.from_numpy(TABLE), torch.from_numpy(CLASSES))
    train.classes = ["cat", "dog", "owl"]
    data = as_dataset(lambda: (train, TensorDataset(torch.from_numpy(TABLE[:3]), torch.from_numpy(CLASSES[:3]))))
    assert data.label_names == ("cat", "dog", "owl")
    assert data.x_train.shape == (8, 5)
    assert data.y_test.tolist() == [0, 1, 2]


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_torch_data_sets_of_pictures_are_those_of_their_pixels(mode):
    """As torchvision's data sets without a transform give them."""
    pixels = RNG.integers(0, 256, (6, 5, 4, 3) if mode == "RGB" else (6, 5, 4)).astype(np.uint8)
    samples = [(Image.fromarray(each, mode), i % 2) for i, each in enumerate(pixels)]
    data = as_dataset((samples, samples[:2]))
    assert data.x_train.shape == (6, 3 if mode == "RGB" else 1, 5, 4)
    assert data.x_train[4, -1, 1, 2] == pixels[4, 1, 2].flat[-1]


def picture(mode, colour, first):
    """A picture of one colour. A palette lists that colour `first` or after black: its numbers alone say nothing."""
    if mode != "P":
        return Image.new("RGB", (5, 5), colour).convert(mode)
    image = Image.new("P", (5, 5), 0 if first else 1)
    image.putpalette([*colour, 0, 0, 0] if first else [0, 0, 0, *colour])
    return image


@pytest.mark.parametrize("mode", ["P", "PA", "CMYK", "RGBA", "YCbCr", "HSV"])
def test_pictures_of_every_mode_have_their_colours_in_data_sets_and_in_lists(mode):
    colours, labels = [(254, 0, 0), (0, 0, 254)] * 2, [0, 1, 0, 1]
    pictures = [picture(mode, colour, first=i < 2) for i, colour in enumerate(colours)]
    in_sets = as_dataset(([*zip(pictures, labels, strict=True)],) * 2)
    in_lists = as_dataset((pictures, np.array(labels)) * 2)
    for data in (in_sets, in_lists):
        assert data.x_train.shape == (4, 3, 5, 5)
        error = data.x_train[:, :, 2, 2].int() - torch.tensor(colours)
        assert error.abs().max() <= 4  # conversions round


def test_an_array_that_is_only_read_gives_no_warning(recwarn):
    table = np.array(TABLE)
    table.flags.writeable = False
    as_dataset((table, CLASSES, table, CLASSES))
    assert not recwarn.list


def named(*classes):
    train = TensorDataset(torch.from_numpy(TABLE), torch.from_numpy(CLASSES))
    train.classes = np.array(classes)
    return train, train


def test_names_of_classes_may_be_an_array_or_missing():
    assert as_dataset(named("cat", "dog", "owl")).label_names == ("cat", "dog", "owl")
    assert as_dataset(named()).label_names == ("0", "1", "2")


def test_labels_that_are_tokens_stay_the_same_tokens_where_every_token_is_predicted():
    """Token 3 begins every sentence and is never a label, nor is 0."""
    x = np.array([[3, 0, 1, 2], [3, 1, 0, 1]])
    text = as_dataset((x, [4, 2], x, [2, 4])).predicting_all()
    assert text.x_train.tolist() == [[3, 0, 1, 2, 4], [3, 1, 0, 1, 2]]
    assert text.x_test[:, -1].tolist() == [2, 4]
    assert text.token_names == ("0", "1", "2", "3", "4")


def test_labels_that_are_no_tokens_are_refused_where_every_token_is_predicted():
    x, labels = np.array([[3, 0, 1, 2], [3, 1, 0, 1]]), ["no", "yes"]
    with refused("data.targets"):
        as_dataset((x, labels, x, labels)).predicting_all()


class Ending(TensorDataset):
    def __getitem__(self, index):
        sys.exit()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (sys.exit, "fails with SystemExit"),
        ((Ending(torch.zeros(2)), Ending(torch.zeros(2))), "cannot be read: SystemExit"),
        (lambda: 1 / 0, "fails with ZeroDivisionError"),
        (named("cat"), "cannot be read: IndexError"),
        ([[(Image.fromarray(np.full((5, 5), 4000, np.uint16)), i % 2) for i in range(4)]] * 2, "mode I;16"),
        ((np.full((8, 1, 4, 4), 4000, np.uint16), CLASSES) * 2, "8 bits; .*from 4000 to 4000"),
        ((np.full((8, 3), "a", object), CLASSES) * 2, "no numbers .*found 'object'"),
        (([["a", "b", "c"]] * 8, CLASSES) * 2, "no numbers .*found '<U1'"),
        ((TABLE, CLASSES), r"is no data set .*found '2 arrays'; allowed: \(x_train, y_train, x_test, y_test\)"),
        ((TABLE, TABLE, CLASSES, CLASSES), "neither images nor tokens; make them floating"),
        (TABLE, "is no data set .*found 'ndarray'"),
        ({"users": ["ann"], "num_samples": [1], "user_data": {"ann": {"x": [[0]], "y": [0]}}}, "data.partition.file"),
        ((TABLE, CLASSES[:3], TABLE, CLASSES), r"needs one label for each of 8 training .*found 'an array \(3,\)'"),
        ((TABLE, CLASSES, TABLE * np.nan, CLASSES), "numbers that are not finite"),
        ((TABLE * 1e40, CLASSES, TABLE, CLASSES), "numbers that are not finite in float32"),
        ((TABLE, CLASSES, TABLE, CLASSES / 2), "unequal shapes or types .*found 'int64 .* and float64"),
        ((TABLE, CLASSES.astype(str), TABLE, CLASSES), "unequal shapes or types .*found '<U.* and int64"),
        ((TABLE, np.full(8, np.inf), TABLE, CLASSES / 1.0), "targets that are not finite"),
        ((TABLE, CLASSES[:, None], TABLE, CLASSES[:, None]), r"targets of no kind .*found 'int64 \(8, 1\)'"),
        ((TABLE, CLASSES + 1j, TABLE, CLASSES + 1j), "neither numbers nor texts"),
        ((TABLE, CLASSES, TABLE[:, 1:], CLASSES), "training and test samples of unequal shapes"),
        ((RGB_LAST, CLASSES, RGB_LAST, CLASSES), r"channels last; .*found '8x9x9x3 uint8'; allowed: \(N, C, H, W\)"),
        ((1000 + CLASSES[:, None], CLASSES, TABLE, CLASSES), "unequal shapes or types .*8x1 int32 and 8x5 float32"),
        ((CLASSES[:, None] - 1, CLASSES, TABLE, CLASSES), "neither images nor tokens; make them floating"),
    ],
)
def test_a_slip_is_one_line(given, problem):
    with pytest.raises(ScenarioError, match=f"data.factory: .*{problem}"):
        as_dataset(given)


def dealt(holdings, count=None):
    return partition("indices", Samples(CLASSES, 3), count, stream(0, "partition"), holdings=holdings)


def test_a_partition_of_one_s_own_is_dealt_as_it_is(tmp_path):
    holdings = [[0, 3], np.array([5], dtype=np.int32), [5, 6, 7]]
    (tmp_path / "parts.json").write_text(json.dumps([[0, 3], [5], [5, 6, 7]]))
    np.savez(tmp_path / "parts.npz", *holdings)
    for given in (holdings, *(read_indices(str(tmp_path / f"parts.{kind}"), "key") for kind in ("json", "npz"))):
        assert [part.tolist() for part in dealt(given)] == [[0, 3], [5], [5, 6, 7]]


@pytest.mark.parametrize(
    ("holdings", "count", "problem"),
    [
        ([[0], [8]], None, "client 1 has no such sample .*found 8; allowed: whole numbers from 0 to 7"),
        ([[0], [0.5]], None, "client 1 has no list of indices"),
        ([[0], 1], None, "client 1 has no list of indices"),
        ([[0], [[1], [2, 3]]], None, "client 1 has no list of indices"),
        ([], None, "data.partition.file: holds no client"),
        ([[0], [1]], 3, "clients.count: must be the number of arrays .*found 3; allowed: 2"),
    ],
)
def test_indices_that_cannot_be_used_are_one_line(holdings, count, problem):
    with pytest.raises(ScenarioError, match=problem):
        dealt(holdings, count)


@pytest.mark.parametrize("holders", [["bob", "ann", "bob"], [7, 5, 7], np.array([True, False, True])])
def test_the_holder_of_each_sample_may_stand_for_indices(holders):
    assert [part.tolist() for part in by_holder(holders, 3, "key")] == [[1], [0, 2]]
    with pytest.raises(ScenarioError) as error:
        by_holder(holders, 4, "data.partition.file")
    assert (error.value.key, error.value.found) == ("data.partition.file", 3)


@pytest.mark.parametrize("holdings", [[[[1], [2, 3]], [0]], [[0], 1], []])
def test_lists_of_indices_stay_what_they_are(holdings):
    assert by_holder(holdings, 2, "key") == holdings


def compressed_and_damaged(path):
    np.savez_compressed(path, np.arange(1_000) ** 2 % 97)
    content = bytearray(path.read_bytes())
    content[100:200] = bytes(100)
    path.write_bytes(content)


def one_array(path):
    np.save(path.with_suffix(".npy"), CLASSES)
    path.with_suffix(".npy").rename(path)


@pytest.mark.parametrize(
    ("kind", "spoil"),
    [
        ("json", lambda path: path.write_text("{}")),
        ("json", lambda path: path.write_text("[[1")),
        ("json", os.mkfifo),
        ("npz", os.mkfifo),
        *(("npz", partial(Path.write_bytes, data=data)) for data in (b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00")),
        ("npz", compressed_and_damaged),
        ("npz", one_array),
    ],
)
def test_a_file_that_holds_no_indices_is_named_and_a_pipe_not_waited_for(kind, spoil, tmp_path):
    file = tmp_path / f"parts.{kind}"
    spoil(file)
    with refused("data.partition.file", found=str(file)):
        read_indices(str(file), "data.partition.file")


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_hidden_values_of_masked_arrays_are_not_shown_to_a_network(part):
    parts = [np.ones((4, 3)), np.arange(4), np.ones((4, 3)), np.arange(4)]
    parts[part] = np.ma.masked_array(parts[part], mask=parts[part] == parts[part].flat[0])
    with refused(KEY, found=[12, 1][part % 2]):
        as_dataset(tuple(parts))
    with refused(KEY, found=[12, 1][part % 2]):
        as_dataset([np.asarray(array) if n != part else list(array) for n, array in enumerate(parts)])
    parts[part] = np.ma.masked_array(parts[part].data)
    assert as_dataset(tuple(parts)).goal is Goal.LABEL


def test_a_test_label_of_minus_one_stands_for_none():
    x = np.ones((4, 3))
    with refused(KEY, found=-1):
        as_dataset((x, [0, 1, 2, 0], x, [0, 1, 2, -1]))
    assert as_dataset((x, [-1, 1, 1, -1], x, [-1, 1, -1, 1])).label_names == ("-1", "1")


def test_a_class_of_minus_one_has_no_name():
    unlabelled = TensorDataset(torch.ones(4, 3), torch.tensor([0, 1, 1, -1]))
    unlabelled.classes = ["cat", "dog"]
    with refused(KEY, found=-1):
        as_dataset((unlabelled, unlabelled))


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_a_sample_without_a_holder_is_told(missing):
    with refused("data.partition.file", found=1):
        by_holder(["ann", missing, "bob"], 3, "data.partition.file")


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA])
def test_a_text_that_is_missing_is_no_label(missing):
    with refused(KEY, found=2):
        as_dataset(
            (np.ones((4, 3)), pd.Series(["a", missing, "b", missing], dtype=object), np.ones((2, 3)), ["a", "b"])
        )


# Other containers


def test_tokens_may_be_of_any_vocabulary():
    x = np.array([[1, 20_000], [3, 4]])
    data = as_dataset((x, [0, 1], x[1:], [1]))
    assert data.x_train.dtype == data.x_test.dtype == torch.int32
    assert data.x_train.tolist() == x.tolist()
    text = as_dataset((x[1:] % 5, [300], x[1:] % 5, [300])).predicting_all()
    assert text.x_train.tolist() == [[3, 4, 300]]


def test_a_data_loader_gives_its_data_set():
    part = TensorDataset(torch.from_numpy(TABLE), torch.from_numpy(CLASSES))
    loaded, plain = as_dataset((DataLoader(part, 3, shuffle=True), DataLoader(part, 2))), as_dataset((part, part))
    assert torch.equal(loaded.x_train, plain.x_train)
    assert loaded.digest() == plain.digest()


def test_a_data_set_of_hugging_face_gives_two_columns(tmp_path):
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])})
    pictures = [Image.new("P", (4, 4)) for _ in range(4)]
    part = datasets.Dataset.from_dict({"image": pictures, "kind": [0, 1, 0, 1]}, features=features)
    datasets.DatasetDict(train=part, test=part).save_to_disk(str(tmp_path))
    data = as_dataset(datasets.load_from_disk(str(tmp_path)))
    assert data.label_names == ("cat", "dog")
    assert data.y_train.tolist() == [0, 1, 0, 1]
    assert tuple(data.x_train.shape[2:]) == (4, 4)
    text = datasets.Dataset.from_dict({"input_ids": [[1, 2, 300], [4, 5, 6]], "label": [1, 0]})
    assert as_dataset((text, text)).x_train.tolist() == [[1, 2, 300], [4, 5, 6]]
    with pytest.raises(ScenarioError, match=r"one column of samples and one of labels; .*input_ids, label, length"):
        as_dataset((text.add_column("length", [3, 3]), text))
