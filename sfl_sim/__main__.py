"""The console script, also as `python -m sfl_sim`: Ctrl-C and `kill` never show a traceback."""

import gc
import signal
import sys


def main() -> None:
    """Run the command line, whose modules take half a second to import."""
    gc.set_threshold(70_000, *gc.get_threshold()[1:])  # imports make many objects that stay: usually a tenth of a start
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # `kill` keeps what there is, as Ctrl-C does
    try:
        from sfl_sim.cli import main as command_line

        command_line()
    except KeyboardInterrupt:
        from sfl_sim.errors import INTERRUPTED

        print("sfl-sim: interrupted", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    finally:  # nothing is left to do but Python's own end, whose waiting would show a traceback
        # After Ctrl-C within an exec of a text, as of dataclasses, `python -m` would end by the signal and not by 130.
        exec("0")
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) == signal.default_int_handler:
                signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    main()
