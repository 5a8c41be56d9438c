"""`sps doctor`: what this machine and this installation can do, and what is in their way."""

import json as js
import sys
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from spsbench.cli.doctor.examine import LOOKED, examine
from spsbench.cli.safe import is_terminal, one_line
from spsbench.hardware.disks import VARIABLE
from spsbench.hardware.environment import PACKAGES
from spsbench.hardware.sizes import in_words

WIDTH = 200  # columns where nobody's window sets them


def doctor(json: bool) -> None:
    """Show versions, devices, memory, the hub, the models there are, and warnings."""
    found = examine()
    if json:
        print(js.dumps(found, indent=2), flush=True)
        return
    table = Table.grid(padding=(0, 2))
    for name, value in rows(found):
        # Text, not str: rich would read brackets in it as markup.
        table.add_row(Text(name, style="bold"), Text(one_line(value)))
    for warning in found["warnings"]:
        table.add_row(Text("warning", style="bold yellow"), Text(one_line(warning)))
    width = None if is_terminal(sys.stdout) else WIDTH
    Console(width=width, highlight=False).print(table)


def rows(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """A name and a value for each line."""
    yield "python", f"{found['python']} on {found['platform']}"
    for package in PACKAGES:
        key = package.replace("-", "_")
        if key in found:
            yield package, found[key] or "not installed"
    if "cpu" in found:
        yield "processor", f"{found['cpu']}, {found['cores']} cores, {found['threads']} threads"
    yield "at work", f"{found['at_work']} others, in the mean of {LOOKED} s"
    for device in found.get("devices", ()):
        sizes = f"{in_words(device['bytes'])}, {in_words(device['free'])} free"
        yield "device", f"{device['name']}: {device['model']}, {sizes}"
    kernels = found["kernels"]
    words = "compiled" if kernels["compiled"] else f"none, oneDNN instead: {kernels['why']}"
    words += ", for the matrix unit (AMX) too" if kernels["unit"] else ""
    yield "kernels", words
    for kind, reading in kernels["reading"].items():
        yield "weights", f"{kind}: {reading} (measured here)"
    own = found["packings"]
    sizes = f"{in_words(own['bytes'])} of at most {in_words(own['allowed'])}"
    yield "packings", f"{own['models']} models' weights kept laid out, {sizes} ({VARIABLE})"
    disk, hub = found["disk"], found["hub"]
    yield "model cache", f"{disk['folder']}, {in_words(disk['free'])} free"
    answer = "answers" if hub["reachable"] else "cannot be reached"
    token = "a token is set" if hub["token_set"] else "no token"
    yield "hub", f"{hub['endpoint']} {answer}, {token}"
    for name, holds, words in found["sandbox"]:
        yield "sandbox", f"{name}: {'holds' if holds else 'does not hold'}, {words}"
    if not any(holds for _, holds, _ in found["sandbox"]):
        yield "sandbox", "none: `sps score` refuses. docs/sandbox.md says what to install"
    for name, size in found["bundled"].items():
        yield "bundled", f"{name}, {in_words(size)}" if size else f"{name} is not installed"
    for name, size in found["fetched"].items():
        yield (
            "fetched",
            f"{name}, {in_words(size)}" if size else f"not yet: sps models fetch {name}",
        )
    for name, words in found["blocks"].items():
        if words:
            yield "blocks", f"{name}: {words}; --weights blocks runs them as they are"
    for name, size in found["cached"].items():
        yield "cached", f"{name}, {in_words(size)}"
