"""The file of the target's texts: its header, its lines, and how it is generated and resumed.

The header (line 1) holds all settings that the texts depend on; each further line is a batch.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from spsbench.errors import DataError, MismatchError
from spsbench.extensions.training.generation import Text, Writer
from spsbench.extensions.training.prompts import Overlap
from spsbench.foreign import open_foreign
from spsbench.hardware.files import clock
from spsbench.store.atomic import replace_file
from spsbench.store.log import HeadedLog
from spsbench.store.manifest import differences

SCHEMA = 1
FEWEST = 4  # texts, one of them or more for evaluation
OF_TARGET = ("tokenizer", "vocab")  # must match for texts of another run


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts of one target, each a prompt and its continuation."""

    header: Mapping[str, Any]  # target, digests, prompts, seed, temperature ...
    texts: tuple[Text, ...]

    @property
    def tokens(self) -> int:
        """Return the number of tokens that the target wrote."""
        return sum(len(write_texts) for _, write_texts in self.texts)


def read(path: Path, overlap: Overlap | None, decode: Callable[[list[int]], str]) -> Texts:
    """Return the texts of a file, without duplicates, empty texts, and benchmark texts."""
    header = read_head(path)
    vocab = header.get("vocab", 0)
    texts: dict[tuple[tuple[int, ...], tuple[int, ...]], Text] = {}
    empty = shared = 0
    for number, line in enumerate(path.read_bytes().splitlines()[1:], start=2):
        for prompt, text in _texts(parsed(line, path, number), path, number, vocab):
            if len(text) < 2:
                empty += 1
            elif overlap is not None and overlap.of(decode(prompt + text)) is not None:
                shared += 1
            else:
                texts[tuple(prompt), tuple(text)] = (prompt, text)
    if not texts:
        why = "the target ends at once" if empty else "all are texts of the benchmark"
        raise DataError(
            f"no text could be made ({path}): {why}. Give it something to answer or to continue, "
            "with `prompts`"
        )
    return Texts(
        {**header, "left_out": {"empty": empty, "of tasks": shared}}, tuple(texts.values())
    )


def parted(texts: Texts, held_out: int, seed: int) -> tuple[list[Text], list[Text]]:
    """Split texts into training texts and held-out texts, which are disjoint."""
    count = min(held_out, len(texts.texts) // FEWEST)
    if count < 1:
        raise DataError(
            f"{len(texts.texts)} texts: expected {FEWEST} or more, some of them to watch on. "
            "Give more `prompts`, or a higher `count`"
        )
    order = torch.randperm(len(texts.texts), generator=torch.Generator().manual_seed(seed))
    held_out_indices = sorted(order[:count].tolist())
    chosen = set(held_out_indices)
    learnt = [text for i, text in enumerate(texts.texts) if i not in chosen]
    return learnt, [texts.texts[i] for i in held_out_indices]


def read_head(path: Path) -> dict[str, Any]:
    """Return the header of a file of texts."""
    with open_foreign(path, "texts that `sps train` wrote") as (file, _):
        first = file.readline()
    head = parsed(first, path)
    if head.get("schema") != SCHEMA or "target" not in head:
        raise DataError(
            f"{path} has no head (line 1): expected texts that sps train wrote. Check `texts`"
        )
    return {name: value for name, value in head.items() if name != "schema"}


def check_target(head: Mapping[str, Any], expected: Mapping[str, Any], path: Path) -> None:
    """Refuse texts in the tokens of another tokenizer."""
    if any(head.get(name) != expected[name] for name in OF_TARGET):
        raise DataError(
            f"{path} has tokens of {head.get('target')}, not of {expected['target']}: expected "
            "texts in the target's own tokens. Let the target write: leave out `texts`"
        )


def refuse_other(head: Mapping[str, Any], expected: Mapping[str, Any], path: Path) -> None:
    """Refuse to resume texts of other settings."""
    theirs = {name: value for name, value in head.items() if name != "schema"}
    if lines := differences(expected, theirs):
        raise MismatchError.of(
            f"other texts ({path}): expected those that were asked for. Give this one another "
            "folder, or start over with `overwrite`",
            lines,
        )


def parsed(line: bytes, path: Path, number: int = 1) -> dict[str, Any]:
    """Return the object on a line."""
    try:
        value = json.loads(line)
    except ValueError as error:
        raise DataError(f"{path} is damaged (line {number}): expected JSON") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is damaged (line {number}): expected an object")
    return value


def _texts(row: Mapping[str, Any], path: Path, number: int, vocab: int) -> Iterator[Text]:
    for item in row.get("texts", ()):
        parts = (item.get("prompt"), item.get("text")) if isinstance(item, dict) else (None, None)
        for part in parts:
            if not isinstance(part, list) or not all(
                type(token) is int and 0 <= token < vocab for token in part
            ):
                raise DataError(f"{path} is damaged (line {number}): expected tokens below {vocab}")
        yield parts[0] or [], parts[1] or []


log = logging.getLogger(__name__)


def write_texts(
    path: Path, header: Mapping[str, Any], writer: Writer, stop: Callable[[], bool]
) -> bool:
    """Generate the file `path`, or resume it; return whether it is complete.

    Args:
        path: the file; incomplete texts are in a log, `.partial`, next to it.
        header: header of the file.
        writer: generates a batch of texts.
        stop: returns whether to stop; polled before each batch.
    """
    if path.exists():
        refuse_other(read_head(path), header, path)
        return True
    partial_path = path.with_suffix(".partial")
    log_header = {"schema": SCHEMA, **header}
    lines: dict[int, bytes] = {}

    def see(values: dict[str, Any]) -> None:
        lines[values["batch"]] = _line(values)

    with HeadedLog(
        partial_path, log_header, lambda old: refuse_other(old, header, partial_path), see
    ) as journal:
        began, count_before = time.monotonic(), len(lines)
        for index in range(writer.batches):
            if index in lines:
                continue
            if stop():
                return False
            texts = [{"prompt": prompt, "text": text} for prompt, text in writer.batch(index)]
            batch = {"batch": index, "texts": texts}
            journal.append(batch)
            lines[index] = _line(batch)
            is_first = len(lines) == count_before + 1
            if is_first or len(lines) % max(1, writer.batches // 10) == 0:
                seconds = (time.monotonic() - began) / (len(lines) - count_before)
                time_left = clock(seconds * (writer.batches - len(lines)))
                log.info(
                    f"texts: {len(lines)} of {writer.batches} batches  {time_left} left"
                    + ", before the steps and their `minutes`" * is_first
                )
        head = (json.dumps(log_header, sort_keys=True) + "\n").encode()
        replace_file(path, b"".join([head, *(lines[index] for index in sorted(lines))]))
        partial_path.unlink()
    return True


def _line(batch: Mapping[str, Any]) -> bytes:
    return (json.dumps(batch) + "\n").encode()
