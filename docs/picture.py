"""Draws docs/terminal.svg from a real run: `make picture`."""

import os
import pty
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMAND = ["generate", "def fibonacci(n):", "-n", "96", "--seed", "1", "--compare"]
WIDTH = 96


def run() -> str:
    """What the command prints on a terminal, with its colours."""
    leader, follower = pty.openpty()
    sps = Path(sys.executable).with_name("sps")
    environment = os.environ | {"COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    process = subprocess.Popen(
        [str(sps), *COMMAND, "--color", "always"],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        env=environment,
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            block = os.read(leader, 65536)
        except OSError:  # how Linux says that the other end is closed
            break
        if not block:
            break
        seen += block
    if process.wait() != 0:
        raise RuntimeError(f"{process.args} failed: {seen.decode(errors='replace')}")
    return seen.decode().replace("\r\n", "\n")


def main() -> None:
    """Run and draw."""
    words = " ".join(f'"{word}"' if " " in word else word for word in COMMAND)
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)
    console.print(Text(f"$ sps {words}", style="bold"))
    console.print(Text.from_ansi(run()))
    console.save_svg(str(Path(__file__).with_name("terminal.svg")), title="sps generate")


if __name__ == "__main__":
    main()
