"""A file of texts while it is written: in any order, by whoever writes, and gone on with."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from spsbench.distributed.process_group import SingleProcess
from spsbench.errors import DataError, WriteError
from spsbench.hardware.files import clock
from spsbench.store.atomic import replace_file
from spsbench.training.text.texts import SCHEMA, parsed, read_head, refuse_other
from spsbench.training.text.writing import Text, Writer

log = logging.getLogger(__name__)

Take = Callable[[int, list[Text]], None]
"""The number of a batch, and its texts."""

Hands = Callable[[Writer, Sequence[int], Take, Callable[[], bool]], None]
"""Has a writer's batches written, in any order, until `stop` says so."""


def written(
    path: Path,
    made: Mapping[str, Any],
    writer: Writer,
    stop: Callable[[], bool],
    hands: Hands | None = None,
    group: SingleProcess | None = None,
) -> bool:
    """Let the target write into `path`, or go on where it was stopped; whether it is finished.

    A batch is a line, so that what a kill has torn is the last line. Lines are put in order of
    batches at the end. Rank 0 of a group writes them down.

    Args:
        hands: have them written; None: the group does.
        group: of this process; None: it is alone.

    Raises:
        MismatchError: there are texts of other settings.
        WriteError: they cannot be written.
    """
    group = group or SingleProcess()
    work = hands or partial(in_turn, group)
    if group.leads:
        return group.broadcast(_collected(path, made, writer, work, stop, group))
    if missing := group.broadcast(list[int]()):
        work(writer, missing, lambda index, texts: None, stop)
    return group.broadcast(False)


def _collected(
    path: Path,
    made: Mapping[str, Any],
    writer: Writer,
    work: Hands,
    stop: Callable[[], bool],
    group: SingleProcess,
) -> bool:
    """What rank 0 does of it."""
    if path.exists():
        refuse_other(read_head(path), made, path)
        group.broadcast(list[int]())
        return True
    part = path.with_suffix(".partial")
    head = (json.dumps({"schema": SCHEMA, **made}, sort_keys=True) + "\n").encode()
    lines = _begun(part, made) if part.exists() else {}
    replace_file(part, b"".join([head, *lines.values()]))
    try:
        with part.open("ab") as file:
            began, there = time.monotonic(), len(lines)

            def take(index: int, texts: list[Text]) -> None:
                batch = [{"prompt": p, "text": t} for p, t in texts]
                lines[index] = (json.dumps({"batch": index, "texts": batch}) + "\n").encode()
                file.write(lines[index])
                file.flush()
                if len(lines) % max(1, writer.batches // 10) == 0:
                    each = (time.monotonic() - began) / (len(lines) - there)
                    left = clock(each * (writer.batches - len(lines)))
                    log.info(f"texts: {len(lines)} of {writer.batches} batches  {left} left")

            if missing := group.broadcast(
                [index for index in range(writer.batches) if index not in lines]
            ):
                work(writer, missing, take, stop)
        if len(lines) < writer.batches:
            return False
        if list(lines) != sorted(lines):
            replace_file(part, b"".join([head, *(lines[index] for index in sorted(lines))]))
        part.replace(path)
    except OSError as error:
        raise WriteError.of(error, path) from error
    return True


def in_turn(
    group: SingleProcess,
    writer: Writer,
    missing: Sequence[int],
    take: Take,
    stop: Callable[[], bool],
) -> None:
    """Have a group write, a batch each at a time; rank 0 takes what all have written."""
    for first in range(0, len(missing), group.size):
        if group.broadcast(stop()):
            return
        now = missing[first : first + group.size]
        made = group.all_gather([writer.batch(index) for index in now[group.rank : group.rank + 1]])
        if group.leads:
            for index, (texts,) in zip(now, made, strict=False):
                take(index, texts)


def _begun(part: Path, made: Mapping[str, Any]) -> dict[int, bytes]:
    """The batches that are whole, as they were written.

    Raises:
        MismatchError: of other settings.
        DataError: damaged before the last line.
    """
    lines = part.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    if not whole:
        return {}
    refuse_other(parsed(whole[0], part), made, part)
    found: dict[int, bytes] = {}
    for number, line in enumerate(whole[1:], start=2):
        index = parsed(line, part, number).get("batch")
        if type(index) is not int:
            raise DataError(f"{part} is damaged (line {number}): expected a batch")
        found[index] = line
    return found
