"""The command line of a run over a share of the tests.

Apart from the plug-in `tests.share`, which pytest itself has to import first.
"""

import argparse
import random


def arguments(command: str, description: str) -> list[str]:
    """Return pytest's arguments from the command line; print `command` for the same draw."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options, others = parser.parse_known_args()
    drawn = [f"--share={options.share}", f"--seed={options.seed}"] if options.share < 1 else []
    print("again:", command.format(" ".join([*drawn, *others])), flush=True)
    return ["-p", "tests.share", *drawn, *others]
