"""Downloads: resumed, verified, and honest about what failed."""

import hashlib
import tarfile
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from refusals import refused

from sfl_sim.data.download import Remote, data_root, fetch, fetch_folder
from sfl_sim.errors import ScenarioError

CONTENT = bytes(range(256)) * 1000


def sha256(content):
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def names_in(folder):
    """List the names in a folder, without lock files."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


@pytest.fixture
def remote(server, tmp_path):
    server.files["set.bin"] = CONTENT
    return Remote((server.url + "set.bin",), tmp_path / "sets" / "set.bin", sha256(CONTENT))


def test_a_file_is_fetched_once(server, remote, capsys):
    fetch("set", [remote], download=True)
    fetch("set", [remote], download=True)
    assert remote.file.read_bytes() == CONTENT
    assert server.requests == [("set.bin", None)]
    assert capsys.readouterr().err == f"downloading {remote.urls[0]} (0.3 MB)\n"
    assert names_in(remote.file.parent) == ["set.bin"]


def test_an_interrupted_download_goes_on_where_it_broke_off(server, remote):
    server.breaks_after = 100_000
    with refused("data.name", says="156,000 bytes"):
        fetch("set", [remote], download=True)
    assert not remote.file.exists()
    server.breaks_after = None
    fetch("set", [remote], download=True)
    assert remote.file.read_bytes() == CONTENT
    assert server.requests[1:] == [("set.bin", "bytes=100000-")]


def part_of(remote, content):
    part = remote.file.with_name("set.bin.part")
    part.parent.mkdir()
    part.write_bytes(content)


def test_a_server_that_cannot_resume_sends_all_again(server, remote):
    server.resumes = False
    part_of(remote, CONTENT[:1000])
    fetch("set", [remote], download=True)
    assert remote.file.read_bytes() == CONTENT
    assert len(server.requests) == 1


@pytest.mark.parametrize("rest", [b"", b"surplus"])
def test_a_complete_part_becomes_the_file_or_is_downloaded_again(server, remote, rest):
    part_of(remote, CONTENT + rest)
    fetch("set", [remote], download=True)
    assert remote.file.read_bytes() == CONTENT
    assert len(server.requests) == (2 if rest else 1)


def test_the_part_of_another_file_is_deleted(server, remote):
    part_of(remote, b"?" * 1000)
    fetch("set", [remote], download=True)
    assert remote.file.read_bytes() == CONTENT
    assert server.requests == [("set.bin", "bytes=1000-"), ("set.bin", None)]


def test_a_server_that_sends_a_wrong_range_is_asked_twice_and_no_third_time(server, remote):
    server.shift = 1
    part_of(remote, CONTENT[:1000])
    with refused("data.name", says="sha256"):
        fetch("set", [remote], download=True)
    assert names_in(remote.file.parent) == []
    server.shift = 0
    fetch("set", [remote], download=True)
    assert remote.file.read_bytes() == CONTENT


def test_a_damaged_file_is_replaced(server, remote):
    remote.file.parent.mkdir()
    remote.file.write_bytes(b"damaged")
    fetch("set", [remote], download=True)
    assert remote.file.read_bytes() == CONTENT


def test_the_second_address_is_tried_if_the_first_fails(server, remote):
    two = Remote((server.url + "moved.bin", *remote.urls), remote.file, remote.checksum)
    fetch("set", [two], download=True)
    assert [name for name, _ in server.requests] == ["moved.bin", "set.bin"]


def test_a_missing_set_is_one_line_that_says_what_goes_where(server, remote):
    with pytest.raises(ScenarioError) as missing:
        fetch("my_set", [remote], download=False)
    assert str(missing.value) == (
        f"data.name: my_set is not in {remote.file.parent} and data.download is off: download {remote.urls[0]} to that "
        "folder, or set SFL_SIM_DATA or data.root to one that has it"
    )
    del server.files["set.bin"]
    with refused("data.name", says="HTTP Error 404"):
        fetch("my_set", [remote], download=True)
    assert not any(remote.file.parent.iterdir())  # no lock, either


@pytest.mark.parametrize("top", ["", "pictures/"])
@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
def test_an_archive_becomes_its_folder_whether_or_not_it_has_one_inside(server, tmp_path, kind, top):
    (tmp_path / "cat.txt").write_text("cat")
    made = tmp_path / f"made.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(made, "w") as archive:
            archive.write(tmp_path / "cat.txt", f"{top}a/cat.txt")
    else:
        with tarfile.open(made, "w:gz") as archive:
            archive.add(tmp_path / "cat.txt", f"{top}a/cat.txt")
    server.files["pictures"] = made.read_bytes()
    folder = tmp_path / "root" / "pictures"
    remote = Remote((server.url + "pictures",), folder.with_name(f"pictures.{kind}"), sha256(made.read_bytes()))
    fetch_folder("pictures", folder, remote, download=True)
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*.txt")] == ["a/cat.txt"]
    assert names_in(folder.parent) == ["pictures", f"pictures.{kind}"]
    fetch_folder("pictures", folder, remote, download=False)


def test_two_threads_download_and_unpack_only_once(server, tmp_path, monkeypatch):
    made = tmp_path / "made.zip"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("cat.txt", "cat")
        archive.writestr("dog.txt", "dog")
    server.files["pictures"] = made.read_bytes()
    folder = tmp_path / "root" / "pictures"
    remote = Remote((server.url + "pictures",), folder.with_name("pictures.zip"), sha256(made.read_bytes()))
    both, unpacked = threading.Barrier(2), []

    def together(*args):
        both.wait()
        fetch(*args)

    def slowly(archive, partial):
        unpacked.append(partial)
        partial.mkdir()
        for name in ("cat.txt", "dog.txt"):
            time.sleep(0.1)
            (partial / name).touch()

    monkeypatch.setattr("sfl_sim.data.download.fetch", together)
    monkeypatch.setattr("torchvision.datasets.utils.extract_archive", slowly)
    with ThreadPoolExecutor(2) as pool:
        for run in [pool.submit(fetch_folder, "pictures", folder, remote, True) for _ in range(2)]:
            run.result()
    assert names_in(folder) == ["cat.txt", "dog.txt"]
    assert len(server.requests) == len(unpacked) == 1


def test_the_data_root_is_what_is_given_or_the_variable_or_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SFL_SIM_DATA", "/big/disk")
    assert str(data_root("~/sets")) == "/home/me/sets"
    assert str(data_root(None)) == "/big/disk"
    monkeypatch.delenv("SFL_SIM_DATA")
    assert str(data_root(None)) == "/home/me/.cache/sfl-sim"
