"""`sps`, also as `python -m spsbench`: Ctrl-C ends it with one line from its first import on."""

import signal

from spsbench.cli.interrupt import at_once, leave


def main() -> None:
    """Import the commands, run the command line and exit."""
    try:
        with at_once():
            from spsbench.cli.main import main as run
        run()
    except KeyboardInterrupt:  # between `at_once` and the handlers of the command
        leave()
    finally:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, lambda number, frame: leave())  # while Python shuts down


if __name__ == "__main__":
    main()
