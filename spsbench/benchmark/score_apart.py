"""`sps score` in a process of its own, without torch: programs never run beside the models."""

import logging
import signal
import subprocess
import sys
from pathlib import Path

from spsbench.errors import Exit
from spsbench.store.interrupt import graceful

log = logging.getLogger(__name__)

PROGRAM = "import sys; from spsbench.cli.main import main; sys.argv[0] = 'sps'; main()"
POLL = 0.2  # seconds


def score_apart(folder: Path) -> int:
    """Judge the programs of a finished run; the exit code of `sps score`.

    Whatever becomes of it, the run is kept, and says how to go on.
    """
    # -P: a file in the working directory is no module of ours
    command = [sys.executable, "-P", "-c", PROGRAM, "score", str(folder), "--allow-partial"]
    with graceful() as interrupt:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        told = False
        while True:
            try:
                code = process.wait(POLL)
                break
            except subprocess.TimeoutExpired:
                # Ctrl-C reaches it by itself: it is in our group
                if interrupt.signal not in (None, signal.SIGINT) and not told:
                    process.send_signal(interrupt.signal or signal.SIGTERM)
                    told = True
    if code:
        log.info(
            f"the run is complete, but its programs are not scored (exit code {code}). "
            f"Go on with: sps score {folder}"
        )
    return code if code >= 0 else Exit.INTERNAL
