"""Two processes and one folder: only one of them writes there, however closely they follow each other."""

import errno
import os
import platform
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from sfl_sim.cli import main
from sfl_sim.errors import ScenarioError
from sfl_sim.store.folder import RunFolder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no flock")

WRITER = """
import sys
from pathlib import Path
from sfl_sim.errors import ScenarioError
from sfl_sim.store.folder import RunFolder

print("ready", flush=True)
for line in sys.stdin:
    try:
        folder = RunFolder(Path(line.strip()), "digest")
        (folder.staging / "whose").write_text(line)
        print("mine", flush=True)
    except ScenarioError as error:
        print(error, flush=True)
"""


class Writer:
    """A process that opens the folders that it is told of, and never closes one."""

    def __init__(self, stack):
        command = [sys.executable, "-c", WRITER]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = stack.enter_context(subprocess.Popen(command, **pipes))
        stack.callback(self.process.kill)

    def tell(self, folder):
        self.process.stdin.write(f"{folder}\n")
        self.process.stdin.flush()

    def hear(self):
        return self.process.stdout.readline().strip()


@pytest.fixture
def writers():
    with ExitStack() as stack:
        both = [Writer(stack) for _ in range(2)]
        assert [writer.hear() for writer in both] == ["ready"] * 2
        yield both


def test_of_two_that_begin_at_once_one_goes_on_and_one_is_told_by_whom_it_was_forestalled(writers, tmp_path):
    for number in range(50):
        place = tmp_path / f"run{number}"
        for writer in writers:
            writer.tell(place)
        said = {writer.process.pid: writer.hear() for writer in writers}
        winner, loser = sorted(said, key=lambda pid: said[pid] != "mine")
        assert said[winner] == "mine"
        who = f"process {winner} on {platform.node()}|another process"  # it may not have said yet who it is
        assert re.fullmatch(rf"--out: ({who}) is writing there \(found '{place}'\)", said[loser])


def test_the_command_line_is_refused_in_one_line_until_the_first_ends_even_by_kill(writers, tmp_path, capsys):
    place = tmp_path / "run"
    writers[0].tell(place)
    assert writers[0].hear() == "mine"
    command = ["heterogeneous_bw", "--timing-only", "-q", "--set", "train.rounds=1", "--out", str(place)]
    with pytest.raises(SystemExit) as stop:
        main(command)
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    writers[0].process.kill()
    writers[0].process.wait()
    assert (tmp_path / ".run.lock").exists()  # of nobody
    writers[1].tell(place)
    assert writers[1].hear() == "mine"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs /proc, which Linux has")
def test_a_folder_that_takes_no_files_is_not_called_another_s():
    with pytest.raises(ScenarioError, match="--out: cannot write there: No such file or directory"):
        RunFolder(Path("/proc/run"), "digest")


def test_whoever_is_done_leaves_no_lock_behind(tmp_path):
    first = RunFolder(tmp_path / "run", "digest")
    with pytest.raises(ScenarioError, match=f"process {os.getpid()} on "):
        RunFolder(tmp_path / "run", "digest")
    first.discard()
    assert list(tmp_path.iterdir()) == []
    RunFolder(tmp_path / "run", "digest").discard()


@pytest.fixture(params=["nfs4 rw,local_lock=all", "nfs rw,nolock,local_lock=none", "lustre rw,localflock", "no locks"])
def a_disk_whose_locks_reach_nobody(request, tmp_path, monkeypatch):
    """A folder on a disk that machines share, and whose locks hold within each machine alone; or it has none."""
    place = tmp_path / "shared disk"
    place.mkdir()
    mounts, as_there = tmp_path / "mounts", str(place).replace(" ", "\\040")
    mounts.write_text(f"/dev/vda / ext4 rw 0 0\nserver:/ {as_there} {request.param} 0 0\n")
    monkeypatch.setattr("sfl_sim.store.lock.MOUNTS", mounts)
    if request.param == "no locks":
        monkeypatch.setattr("fcntl.flock", none_of_them)
    return place


def none_of_them(file, wish):
    raise OSError(errno.ENOSYS, "Function not implemented")


def test_where_locks_reach_no_other_machine_the_file_itself_is_the_lock(a_disk_whose_locks_reach_nobody):
    run, lock = (a_disk_whose_locks_reach_nobody / name for name in ("run", ".run.lock"))
    first = RunFolder(run, "digest")
    with pytest.raises(ScenarioError, match=f"process {os.getpid()} on {platform.node()}"):
        RunFolder(run, "digest")
    first.discard()
    lock.write_text("7\nnode7\n")
    with pytest.raises(ScenarioError, match=f"--out: process 7 on node7 .* then remove {lock}"):
        RunFolder(run, "digest")
    lock.unlink()
    killed = "import filelock as f, os, sys; l = f.SoftFileLock(sys.argv[1]); l.acquire(); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", killed, lock], check=False)
    assert lock.exists()
    RunFolder(run, "digest").discard()


@pytest.mark.parametrize("mount", ["nfs4 rw,local_lock=none", "nfs rw,local_lock=posix", "lustre rw,flock", "ext4 rw"])
def test_where_locks_reach_other_machines_a_file_that_a_kill_has_left_is_of_nobody(mount, tmp_path, monkeypatch):
    monkeypatch.setattr("sfl_sim.store.lock.MOUNTS", tmp_path / "mounts")
    (tmp_path / "mounts").write_text(f"server:/ {tmp_path} {mount} 0 0\n")
    (tmp_path / ".run.lock").write_text("process 7 on node7")
    RunFolder(tmp_path / "run", "digest").discard()
