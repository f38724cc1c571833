"""Studies that share a folder of data sets: none reads what another has not finished, even if that one is killed."""

import hashlib
import io
import os
import subprocess
import sys
import time
import zipfile
from contextlib import ExitStack

import pytest

from sfl_sim.data.cache import FOLDER
from sfl_sim.data.download import CHUNK_BYTES

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no flock")

STUDY = """
import sys
from pathlib import Path
import torch
from sfl_sim.data.cache import cached
from sfl_sim.data.dataset import Dataset
from sfl_sim.data.download import Remote, fetch_folder

def read():
    fetch_folder("pixels", folder, Remote((url,), folder.with_name("pixels.zip"), checksum), download=True)
    pixels = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    x = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(-1, 1, 2, 2)
    y, half = torch.arange(len(x)) % 2, torch.tensor([0.5])
    return Dataset("pixels", x[10:], y[10:], x[:10], y[:10], ("even", "odd"), half, half + 0.1)

print("ready", flush=True)
for line in sys.stdin:
    root, url, checksum = line.split()
    folder = Path(root, "pixels")
    data = cached(Path(root), "pixels", {}, [folder], read)
    print(int(data.x_train.long().sum() + data.x_test.long().sum()), flush=True)
"""
FILES = 3000
TOTAL = sum(1024 * (number % 256) for number in range(FILES))


class Study:
    """A process that reads the data set wherever it is told to."""

    def __init__(self, stack):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        self.process = stack.enter_context(subprocess.Popen([sys.executable, "-c", STUDY], **pipes))  # type: ignore[call-overload]
        stack.callback(self.process.kill)

    def begin(self, *about):
        print(*about, file=self.process.stdin, flush=True)

    def says(self):
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def studies():
    """Three processes; a test that kills one takes it out."""
    with ExitStack() as stack:
        found = [Study(stack) for _ in range(3)]
        assert [study.says() for study in found] == ["ready"] * 3
        yield found


@pytest.fixture
def about(server, tmp_path):
    """The folder of data sets, where the archive is published, and its checksum."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for number in range(FILES):
            archive.writestr(f"{number:04d}.bin", bytes([number % 256]) * 1024)
    server.files["pixels.zip"] = content.getvalue()
    return tmp_path / "root", f"{server.url}pixels.zip", f"sha256:{hashlib.sha256(content.getvalue()).hexdigest()}"


def wait_for(path, size_bytes=0):
    deadline_s = time.monotonic() + 30
    while not (path.exists() and path.stat().st_size >= size_bytes):
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_of_several_processes_one_downloads_and_unpacks_and_all_read_the_same(server, studies, about):
    root = about[0]
    for _ in range(3):  # fetched, then cached, then from the cache
        for study in studies:
            study.begin(*about)
        assert {study.says() for study in studies} == {str(TOTAL)}
    assert server.requests == [("pixels.zip", None)]
    assert sorted(path.name for path in root.iterdir() if path.suffix != ".lock") == ["pixels", "pixels.zip", FOLDER]
    assert len(list((root / FOLDER).iterdir())) == 1


def test_a_killed_download_is_resumed_and_never_taken_as_complete(server, studies, about):
    root, killed, other = about[0], studies.pop(), studies[0]
    server.breaks_after = len(server.files["pixels.zip"]) // 2
    server.goes_on.clear()
    killed.begin(*about)
    wait_for(root / "pixels.zip.part", CHUNK_BYTES)
    other.begin(*about)  # it waits for the first
    killed.kill()
    assert not (root / "pixels.zip").exists()
    server.breaks_after = None
    server.goes_on.set()
    assert other.says() == str(TOTAL)
    assert server.requests[1][1].startswith("bytes=")


def test_a_half_unpacked_folder_is_never_taken_as_complete(studies, about):
    root, killed, other = about[0], studies.pop(), studies[0]
    killed.begin(*about)
    wait_for(root / "pixels.partial" / "0000.bin")
    killed.kill()
    assert not (root / "pixels").exists()
    other.begin(*about)
    assert other.says() == str(TOTAL)
