"""A file of the target's texts: where they come from stands in its first line."""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from spsbench.distributed.process_group import SingleProcess
from spsbench.errors import DataError, MismatchError, MissingError, WriteError
from spsbench.hardware.files import clock, open_file
from spsbench.store.atomic import replace_file
from spsbench.store.manifest import differences
from spsbench.training.generation import Text, Writer
from spsbench.training.prompts import Overlap

SCHEMA = 1
FEWEST = 4  # texts, some of them to watch on
OF_TARGET = ("tokenizer", "vocab")  # must be the same for texts that others made


@dataclass(frozen=True, slots=True)
class Texts:
    """Of one target, prompt and continuation apart."""

    made: Mapping[str, Any]  # target, digests, prompts, seed, temperature ...
    texts: tuple[Text, ...]

    @property
    def tokens(self) -> int:
        """Tokens that the target wrote."""
        return sum(len(write_texts) for _, write_texts in self.texts)


def read(path: Path, overlap: Overlap | None, decode: Callable[[list[int]], str]) -> Texts:
    """The texts of a file: each once, none that ends at once, none that is a task's.

    Raises:
        DataError: no text is left, or a damaged file.
        MissingError: no such file.
    """
    made = read_head(path)
    vocab = made.get("vocab", 0)
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], Text] = {}
    empty = shared = 0
    for number, line in enumerate(path.read_bytes().splitlines()[1:], start=2):
        for prompt, text in _texts(parsed(line, path, number), path, number, vocab):
            if len(text) < 2:
                empty += 1
            elif overlap is not None and overlap.of(decode(prompt + text)) is not None:
                shared += 1
            else:
                found[tuple(prompt), tuple(text)] = (prompt, text)
    if not found:
        why = "the target ends at once" if empty else "all are texts of the benchmark"
        raise DataError(
            f"no text could be made ({path}): {why}. Give it something to answer or to continue, "
            "with --prompts"
        )
    return Texts({**made, "left_out": {"empty": empty, "of tasks": shared}}, tuple(found.values()))


def parted(texts: Texts, held_out: int, seed: int) -> tuple[list[Text], list[Text]]:
    """Those to learn from, and those to watch on: no text is in both.

    Raises:
        DataError: too few for both.
    """
    count = min(held_out, len(texts.texts) // FEWEST)
    if count < 1:
        raise DataError(
            f"{len(texts.texts)} texts: expected {FEWEST} or more, some of them to watch on. "
            "Give more --prompts, or a higher --count"
        )
    order = torch.randperm(len(texts.texts), generator=torch.Generator().manual_seed(seed))
    held = sorted(order[:count].tolist())
    chosen = set(held)
    learnt = [text for i, text in enumerate(texts.texts) if i not in chosen]
    return learnt, [texts.texts[i] for i in held]


def read_head(path: Path) -> dict[str, Any]:
    """Where texts come from.

    Raises:
        MissingError, DataError: no such file, or another one.
    """
    try:
        with open_file(path) as file:
            first = file.readline()
    except FileNotFoundError as error:
        raise MissingError(f"no texts ({path}): expected a file that sps train wrote") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})") from error
    head = parsed(first, path)
    if head.get("schema") != SCHEMA or "target" not in head:
        raise DataError(
            f"{path} has no head (line 1): expected texts that sps train wrote. Check --texts"
        )
    return {name: value for name, value in head.items() if name != "schema"}


def check_target(head: Mapping[str, Any], made: Mapping[str, Any], path: Path) -> None:
    """Refuse texts in the tokens of another tokenizer.

    Raises:
        DataError: with both targets.
    """
    if any(head.get(name) != made[name] for name in OF_TARGET):
        raise DataError(
            f"{path} has tokens of {head.get('target')}, not of {made['target']}: expected texts "
            "in the target's own tokens. Let the target write: leave out --texts"
        )


def refuse_other(head: Mapping[str, Any], made: Mapping[str, Any], path: Path) -> None:
    """Refuse to go on with texts of other settings.

    Raises:
        MismatchError: with the fields that differ.
    """
    theirs = {name: value for name, value in head.items() if name != "schema"}
    if lines := differences(made, theirs):
        raise MismatchError.of(
            f"other texts ({path}): expected those that were asked for. Give this one another "
            "folder, or start over with --overwrite",
            lines,
        )


def parsed(line: bytes, path: Path, number: int = 1) -> dict[str, Any]:
    """A line of it.

    Raises:
        DataError: no JSON object.
    """
    try:
        value = json.loads(line)
    except ValueError as error:
        raise DataError(f"{path} is damaged (line {number}): expected JSON") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is damaged (line {number}): expected an object")
    return value


def _texts(row: Mapping[str, Any], path: Path, number: int, vocab: int) -> Iterator[Text]:
    for each in row.get("texts", ()):
        parts = (each.get("prompt"), each.get("text")) if isinstance(each, dict) else (None, None)
        for part in parts:
            if not isinstance(part, list) or not all(
                type(token) is int and 0 <= token < vocab for token in part
            ):
                raise DataError(f"{path} is damaged (line {number}): expected tokens below {vocab}")
        yield parts[0] or [], parts[1] or []


# A file of texts while it is written: in any order, by whoever writes, and gone on with.

log = logging.getLogger(__name__)

Take = Callable[[int, list[Text]], None]
"""The number of a batch, and its texts."""

Hands = Callable[[Writer, Sequence[int], Take, Callable[[], bool]], None]
"""Has a writer's batches written, in any order, until `stop` says so."""


def write_texts(
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
