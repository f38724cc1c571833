"""The sets that torchvision reads: the real ones where they are staged, else tiny ones in their true formats."""

import gzip
import hashlib
import io
import math
import pickle
import tarfile
import urllib.error
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io
import torch
import torchvision
from refusals import refused
from well_formed import assert_normalised_by_mean_and_std, assert_well_formed

from sfl_sim.data.loading import load
from sfl_sim.errors import ScenarioError

RNG = np.random.default_rng(0)


def md5(content):
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


# The real ones


@pytest.mark.parametrize(
    ("name", "train_shape", "first_label"),
    [("cifar10", (50_000, 3, 32, 32), "airplane"), ("fashion_mnist", (60_000, 1, 28, 28), "T-shirt/top")],
)
def test_real_images_load_offline_with_their_well_known_constants(staged_data, capfd, name, train_shape, first_label):
    data = load(name, root=staged_data, download=False)
    assert_well_formed(data)
    assert_normalised_by_mean_and_std(data)
    assert data.x_train.shape == train_shape
    assert data.x_test.shape == (10_000, *train_shape[1:])
    assert data.label_names[0] == first_label
    assert capfd.readouterr() == ("", "")


def test_cached_cifar10_equals_what_torchvision_reads(staged_data):
    data = load("cifar10", root=staged_data, download=False)
    train = torchvision.datasets.CIFAR10(staged_data, train=True)
    for i in (0, 12_345, 49_999):
        image, label = train[i]
        assert np.array_equal(data.x_train[i].permute(1, 2, 0), np.asarray(image))
        assert data.y_train[i] == label


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("mnist", [0.1307], [0.3081]),
        ("fashion_mnist", [0.2860], [0.3530]),
        ("cifar10", [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
        ("cifar100", [0.5071, 0.4865, 0.4409], [0.2673, 0.2564, 0.2762]),
        ("svhn", [0.4377, 0.4438, 0.4728], [0.1980, 0.2010, 0.1970]),
    ],
)
def test_images_are_normalised_with_the_published_constants(monkeypatch, name, mean, std):
    parts = [
        SimpleNamespace(data=np.zeros((2, 8, 8, 3), dtype=np.uint8), targets=[0, 1], labels=[0, 1], classes=["a", "b"])
        for _ in range(2)
    ]
    monkeypatch.setattr("sfl_sim.data.torchvision_sets._opened", lambda *args: parts)
    data = load(name)
    assert data.mean.tolist() == pytest.approx(mean)
    assert data.std.tolist() == pytest.approx(std)


# Missing


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "cifar100", "svhn"])
def test_missing_files_are_one_line_that_says_where_they_belong(data_folder, name):
    with refused("data.name", says="https?://.*SFL_SIM_DATA") as failure:
        load(name, download=False)
    assert str(data_folder) in str(failure.value)


def test_a_failed_download_is_one_line_that_says_why(tmp_path, monkeypatch, capfd):
    def no_network(*args, **kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr("sfl_sim.data.download.urlopen", no_network)
    with pytest.raises(ScenarioError, match=r"downloading it failed.*no network") as failure:
        load("cifar10", root=tmp_path)
    assert str(tmp_path) in str(failure.value)
    assert "\n" not in str(failure.value)
    assert capfd.readouterr() == ("", "")


# Tiny ones, published on a server


def publish_cifar(server, monkeypatch, kind, batches, meta):
    """An archive of pickled batches of random images, with the checksums of its own that torchvision verifies."""
    pixels, files = {}, {}
    for name, labels in batches.items():
        n = len(next(iter(labels.values())))
        pixels[name] = RNG.integers(0, 256, (n, 3 * 32 * 32), dtype=np.uint8)
        files[name] = pickle.dumps({"data": pixels[name], **labels})
    files[kind.meta["filename"]] = pickle.dumps(meta)
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{kind.base_folder}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    server.files[kind.filename] = stream.getvalue()
    monkeypatch.setattr(kind, "url", server.url + kind.filename)
    monkeypatch.setattr(kind, "tgz_md5", md5(stream.getvalue()))
    test = [name for name in batches if "test" in name]
    monkeypatch.setattr(kind, "train_list", [[name, md5(files[name])] for name in batches if name not in test])
    monkeypatch.setattr(kind, "test_list", [[name, md5(files[name])] for name in test])
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": md5(files[kind.meta["filename"]])})
    return {name: torch.from_numpy(x).reshape(-1, 3, 32, 32) for name, x in pixels.items()}


@pytest.fixture
def cifar100(server, monkeypatch):
    """Four training images and two test images of CIFAR-100."""
    labels = {"train": ([3, 0, 2, 1], [1, 0, 1, 0]), "test": ([2, 3], [1, 1])}
    batches = {name: {"fine_labels": fine, "coarse_labels": coarse} for name, (fine, coarse) in labels.items()}
    meta = {"fine_label_names": ["apple", "bee", "cattle", "pear"], "coarse_label_names": ["animals", "fruit"]}
    return publish_cifar(server, monkeypatch, torchvision.datasets.CIFAR100, batches, meta)


def test_cifar100_is_downloaded_resumed_unpacked_and_cached(server, cifar100, data_folder):
    server.breaks_after = 5000
    with refused("data.name", says="resume"):
        load("cifar100")
    server.breaks_after = None
    data = load("cifar100")
    assert server.requests[-1] == ("cifar-100-python.tar.gz", "bytes=5000-")
    assert torch.equal(data.x_train, cifar100["train"])
    assert torch.equal(data.x_test, cifar100["test"])
    assert data.y_train.tolist() == [3, 0, 2, 1]
    assert data.label_names == ("apple", "bee", "cattle", "pear")
    load("cifar100")
    assert len(server.requests) == 2


def test_cifar100_has_superclasses_too(cifar100):
    assert load("cifar100").n_labels == 4
    data = load("cifar100", superclasses=True)
    assert data.y_train.tolist() == [1, 0, 1, 0]
    assert data.y_test.tolist() == [1, 1]
    assert data.label_names == ("animals", "fruit")
    assert torch.equal(data.x_train, cifar100["train"])


def test_a_damaged_batch_is_replaced_from_the_archive(cifar100, data_folder):
    load("cifar100")
    (data_folder / "cifar-100-python" / "train").write_bytes(b"damaged")
    assert torch.equal(load("cifar100", download=False).x_train, cifar100["train"])


@pytest.fixture
def mnist(server, monkeypatch):
    """20 + 10 images of MNIST, of which the first mirror is gone."""
    kind = torchvision.datasets.MNIST
    x = {"train": RNG.integers(0, 256, (20, 28, 28), dtype=np.uint8), "t10k": np.zeros((10, 28, 28), dtype=np.uint8)}
    resources = []
    for part, images in x.items():
        labels = (np.arange(len(images)) % 10).astype(np.uint8)
        for name, array in (("images-idx3", images), ("labels-idx1", labels)):
            header = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
            file = f"{part}-{name}-ubyte.gz"
            server.files[file] = gzip.compress(header + array.tobytes())
            resources.append((file, md5(server.files[file])))
    monkeypatch.setattr(kind, "resources", resources)
    monkeypatch.setattr(kind, "mirrors", [server.url + "gone/", server.url])
    return torch.from_numpy(x["train"])[:, None]


def test_mnist_comes_from_the_mirror_that_works(mnist):
    data = load("mnist")
    assert_well_formed(data)
    assert torch.equal(data.x_train, mnist)
    assert data.x_test.shape == (10, 1, 28, 28)
    assert data.label_names[3] == "3"


def idx(*shape):
    return bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + bytes(math.prod(shape))


@pytest.mark.parametrize(
    "damaged", [b"", b"damaged", idx(20, 28, 28)[:-1], idx(19, 28, 28)], ids=["empty", "other", "truncated", "too few"]
)
def test_a_damaged_unpacked_file_of_mnist_is_replaced_from_its_archive(mnist, data_folder, damaged):
    load("mnist")
    (data_folder / "MNIST" / "raw" / "train-images-idx3-ubyte").write_bytes(damaged)
    assert torch.equal(load("mnist", download=False).x_train, mnist)


def test_svhn_counts_its_label_ten_as_zero(server, monkeypatch):
    kind = torchvision.datasets.SVHN
    files, x = {}, {part: RNG.integers(0, 256, (32, 32, 3, 10), dtype=np.uint8) for part in ("train", "test")}
    for part, pixels in x.items():
        stream = io.BytesIO()
        scipy.io.savemat(stream, {"X": pixels, "y": np.arange(1, 11, dtype=np.uint8)[:, None]})
        name = f"{part}_32x32.mat"
        server.files[name] = stream.getvalue()
        files[part] = [server.url + name, name, md5(stream.getvalue())]
    monkeypatch.setattr(kind, "split_list", files)
    data = load("svhn")
    assert_well_formed(data)
    assert data.y_train.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert np.array_equal(data.x_train[4].permute(1, 2, 0), x["train"][..., 4])
