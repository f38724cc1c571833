"""Writing without interruption."""

import os
import signal

import pytest

from sfl_sim.engine.trial import uninterrupted


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
