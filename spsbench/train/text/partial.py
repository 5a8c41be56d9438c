"""A file of texts while it is written: in any order, by whoever writes, and gone on with."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, WriteError
from spsbench.store.atomic import replace_file
from spsbench.train.text.texts import SCHEMA, parsed, read_head, refuse_other
from spsbench.train.text.writing import Text, Writer

Take = Callable[[int, list[Text]], None]
"""The number of a batch, and its texts."""

Hands = Callable[[Writer, Sequence[int], Take, Callable[[], bool]], None]
"""Has a writer's batches written, in any order, until `stop` says so."""


def written(
    path: Path,
    made: Mapping[str, Any],
    writer: Writer,
    say: Callable[[str], None],
    stop: Callable[[], bool],
    hands: Hands | None = None,
) -> bool:
    """Let the target write into `path`, or go on where it was stopped; whether it is finished.

    A batch is a line, so that what a kill has torn is the last line. Lines are put in order of
    batches at the end.

    Args:
        hands: have them written; None: this process does, one after the other.

    Raises:
        MismatchError: there are texts of other settings.
        WriteError: they cannot be written.
    """
    partial = path.with_suffix(".partial")
    if path.exists():
        refuse_other(read_head(path), made, path)
        return True
    head = json.dumps({"schema": SCHEMA, **made}, sort_keys=True) + "\n"
    lines: dict[int, bytes] = {}
    if partial.exists():
        lines = _begun(partial, made)
    replace_file(partial, b"".join([head.encode(), *lines.values()]))
    try:
        with partial.open("ab") as file:

            def take(index: int, texts: list[Text]) -> None:
                batch = [{"prompt": p, "text": t} for p, t in texts]
                lines[index] = (json.dumps({"batch": index, "texts": batch}) + "\n").encode()
                file.write(lines[index])
                file.flush()
                if len(lines) % max(1, writer.batches // 10) == 0:
                    say(f"texts: {len(lines)} of {writer.batches} batches")

            missing = [index for index in range(writer.batches) if index not in lines]
            if missing:
                (hands or in_turn)(writer, missing, take, stop)
        if len(lines) < writer.batches:
            return False
        if list(lines) != sorted(lines):
            ordered = [lines[index] for index in sorted(lines)]
            replace_file(partial, b"".join([head.encode(), *ordered]))
        partial.replace(path)
    except OSError as error:
        raise WriteError.of(error, path) from error
    return True


def in_turn(writer: Writer, missing: Sequence[int], take: Take, stop: Callable[[], bool]) -> None:
    """Have this process write, a batch after the other."""
    for index in missing:
        if stop():
            return
        take(index, writer.batch(index))


def _begun(partial: Path, made: Mapping[str, Any]) -> dict[int, bytes]:
    """The batches that are whole, as they were written.

    Raises:
        MismatchError: of other settings.
        DataError: damaged before the last line.
    """
    lines = partial.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    if not whole:
        return {}
    refuse_other(parsed(whole[0], partial), made, partial)
    found: dict[int, bytes] = {}
    for number, line in enumerate(whole[1:], start=2):
        index = parsed(line, partial, number).get("batch")
        if type(index) is not int:
            raise DataError(f"{partial} is damaged (line {number}): expected a batch")
        found[index] = line
    return found
