"""Ctrl-C that waits while something is written, and that nothing loses."""

import os
import signal
import subprocess
import sys
import weakref

import pytest

from sfl_sim.runs.interrupts import interruptible, uninterrupted


def was_interrupted():
    """Press Ctrl-C while something is written; say whether that interrupts after the writing."""
    written = False
    try:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            written = True
    except KeyboardInterrupt:
        assert written
        return True
    return False


@pytest.mark.parametrize(("handler", "interrupts"), [(signal.default_int_handler, True), (signal.SIG_IGN, False)])
def test_ctrl_c_counts_after_the_writing_and_not_in_a_shells_background_job(handler, interrupts):
    before = signal.signal(signal.SIGINT, handler)
    try:
        assert was_interrupted() == interrupts
        assert signal.getsignal(signal.SIGINT) == handler
    finally:
        signal.signal(signal.SIGINT, before)


class Tensor:
    """Something that a weak reference can refer to."""


def press_ctrl_c(_):
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_that_python_drops_while_a_tensor_is_freed_counts_after_the_next_writing(monkeypatch):
    dropped = []
    monkeypatch.setattr(sys, "unraisablehook", lambda problem: dropped.append(problem.exc_type))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with interruptible():
            tensor = Tensor()
            reference = weakref.ref(tensor, press_ctrl_c)
            del tensor
            assert dropped == [KeyboardInterrupt]
            assert reference() is None
            with pytest.raises(KeyboardInterrupt), uninterrupted():
                pass
        with uninterrupted():  # which knows nothing of it any more
            pass
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_process_that_holds_the_news_begins_without_torch():
    """Ctrl-C waits for that process: with torch it took 40 s on a busy machine."""
    program = "import sys; from sfl_sim.runs.interrupts import end_with_parent; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
