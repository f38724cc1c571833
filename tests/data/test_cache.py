"""Cache of data sets: made once, shared, and verified before it is used."""

import os
from pathlib import Path

import pytest
import torch

from sfl_sim.data.cache import FOLDER, cached, walk
from sfl_sim.data.dataset import Dataset


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "pixels.bin").write_bytes(bytes(range(200)))
    return folder


class Reader:
    """Reader of `source` that counts how often it reads."""

    def __init__(self, root, source):
        self.root, self.source, self.times = root, source, 0

    def read(self):
        self.times += 1
        x = torch.tensor(list((self.source / "pixels.bin").read_bytes()), dtype=torch.uint8).reshape(-1, 1, 2, 2)
        y, half = torch.arange(len(x)) % 2, torch.tensor([0.5])
        return Dataset(
            "pixels", x[10:], y[10:], x[:10], y[:10], ("éven", "odd"), half, half + 0.1, owners=1 - y[10:],
            owner_names=("a", "b"),
        )  # fmt: skip

    def __call__(self, **options):
        return cached(self.root, "pixels", options, [self.source], self.read)

    @property
    def file(self):
        (file,) = (self.root / FOLDER).iterdir()
        return file


@pytest.fixture
def reader(tmp_path, source):
    return Reader(tmp_path, source)


def assert_equal(one, other):
    for name in Dataset.__slots__:
        a, b = getattr(one, name), getattr(other, name)
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_the_second_start_reads_the_cache_and_finds_everything(reader):
    first, second = reader(), reader()
    assert reader.times == 1
    assert_equal(first, reader.read())
    assert_equal(second, reader.read())


def test_other_options_are_cached_apart(reader):
    reader(size=1), reader(size=2), reader(size=1), reader(size=None)
    assert reader.times == 3


def test_a_changed_new_or_removed_source_is_noticed(reader):
    reader()
    (reader.source / "more").mkdir()
    (reader.source / "more" / "pixels.bin").write_bytes(b"12")
    reader()
    assert reader.times == 2
    (reader.source / "more" / "pixels.bin").write_bytes(b"123")
    reader()
    assert reader.times == 3
    before = (reader.source / "pixels.bin").stat()
    (reader.source / "pixels.bin").write_bytes(bytes(range(1, 201)))
    os.utime(reader.source / "pixels.bin", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert reader().x_test[0, 0, 0, 0] == 1
    assert reader.times == 4
    (reader.source / "more" / "pixels.bin").unlink()
    reader()
    assert reader.times == 5
    assert len(list((reader.root / FOLDER).iterdir())) == 1  # what is out of date does not pile up


def test_sources_that_change_while_they_are_read_are_not_cached(reader, monkeypatch):
    read = reader.read

    def overtaken():
        data = read()
        (reader.source / "pixels.bin").write_bytes(bytes(100))
        return data

    monkeypatch.setattr(reader, "read", overtaken)
    assert len(reader().y_train) == 40
    monkeypatch.setattr(reader, "read", read)
    assert len(reader().y_train) == 15
    assert_equal(reader(), read())
    assert reader.times == 3


def test_a_root_may_be_spelled_relatively(reader, monkeypatch):
    reader()
    monkeypatch.chdir(reader.root)
    cached(Path(), "pixels", {}, [Path("source")], reader.read)
    assert reader.times == 1


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_others_can_read_the_cache_as_far_as_the_umask_lets_them(reader):
    before = os.umask(0o027)
    try:
        reader()
        assert os.umask(0o027) == 0o027  # left as it was
    finally:
        os.umask(before)
    assert reader.file.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("place", [0, 8, 40, -1])
def test_a_single_wrong_byte_is_noticed_and_repaired(reader, place):
    whole = bytearray(reader() and reader.file.read_bytes())
    whole[place] ^= 1
    reader.file.write_bytes(whole)
    assert_equal(reader(), reader.read())
    reader.times = 0
    reader()
    assert reader.times == 0


@pytest.mark.parametrize("content", [b"", b"not safetensors", "truncated", "foreign"])
def test_a_truncated_or_foreign_file_is_replaced(reader, content, tmp_path):
    reader()
    if content == "truncated":
        content = reader.file.read_bytes()[:-50]
    elif content == "foreign":
        from safetensors.torch import save

        content = save({"weights": torch.ones(3)})
    reader.file.write_bytes(content)
    assert_equal(reader(), reader.read())
    assert reader.times == 3


def test_where_nothing_can_be_written_the_data_are_read_each_time(reader):
    (reader.root / FOLDER).write_text("a file where the folder should be")
    assert_equal(reader(), reader.read())
    reader()
    assert reader.times == 3


def test_a_full_disk_leaves_nothing_behind(reader, monkeypatch):
    def full(tensors, file, notes):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sfl_sim.data.cache.save_file", full)
    assert_equal(reader(), reader.read())
    assert list((reader.root / FOLDER).iterdir()) == []


def smaps(file):
    """Read the kernel's figures of the mapping of `file` in this process, in kB."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    next(line for line in lines if str(file) in line)
    fields = [line.split() for _, line in zip(range(14), lines, strict=False)]
    return {name: int(number) for name, number, *_ in fields if name.endswith(":")}


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="only Linux tells what a process shares")
def test_runs_side_by_side_share_one_copy_until_they_write(reader):
    (reader.source / "pixels.bin").write_bytes(bytes(4096 * 40))
    data = reader()
    data.x_train.sum()
    found = smaps(reader.file)
    assert found["Rss:"] > 100
    assert found["Anonymous:"] == 0  # no page is this process's own
    data.x_train.fill_(7)
    assert smaps(reader.file)["Anonymous:"] > 100
    assert reader().x_train.max() == 0  # writing has not reached the file
    assert reader.times == 1


def test_a_link_that_leads_back_is_entered_once_and_a_changed_one_noticed(reader, source):
    for name in "ab":
        (source / name).symlink_to(".")  # two of them make 2 ^ 40 paths before the system says that these are too many
    assert [names for _, names in walk(source)] == [["a", "b", "pixels.bin"]]
    reader(), reader()
    (source / "b").unlink()
    reader()
    assert reader.times == 2


def test_what_would_be_read_for_ever_is_not_begun(reader, source):
    os.mkfifo(source / "pipe")
    with pytest.raises(OSError, match="is neither a file nor a folder"):
        reader()
    assert reader.times == 0
