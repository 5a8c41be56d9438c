"""`sps`, also as `python -m spsbench`: Ctrl-C ends it with one line, even during imports."""

import atexit
import gc
import os
import signal
import sys

from spsbench.errors import Exit
from spsbench.hardware.signals import at_once, leave


def main() -> None:
    """Import the commands, run the command line and exit.

    Ctrl-C ends it with one line at any time, and with exit code 130 at once: nothing is unloaded.
    """
    gc.set_threshold(20_000, 20)  # objects of imports stay: walks through them took a second
    try:
        with at_once():
            from spsbench.cli.main import main as run
        run()
    except KeyboardInterrupt:  # between `at_once` and the handlers of the command
        leave()
    except SystemExit as end:
        if end.code == Exit.INTERRUPTED:
            end_now()
        raise
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda number, frame: leave())  # while Python shuts down


def end_now() -> None:
    """End an interrupted command at once: exit handlers run, its libraries are not unloaded.

    Where the interrupt came inside `exec`, Python would also end with the signal, and no exit code.
    """
    signal.signal(signal.SIGINT, lambda number, frame: leave())
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(Exit.INTERRUPTED)


if __name__ == "__main__":
    main()
