"""Prompts for the target, in tokens, without texts of the benchmarks (`BenchmarkIndex`)."""

import logging
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from spsbench.errors import DataError, MissingError, UsageError
from spsbench.extensions.training.options import Training
from spsbench.models.hub import cached_file
from spsbench.models.tokenizers import encode_chat, encode_text
from spsbench.plugins import make
from spsbench.spec import PROMPT_FILES, Spec
from spsbench.tasks import articles
from spsbench.tasks.jsonl import Jsonl
from spsbench.tasks.reader import read_rows
from spsbench.untrusted import read_text

log = logging.getLogger(__name__)


def find_task(name: str, flag: str, expected_content: str) -> Any:
    """Return the task of a spec such as `xsum:data=mini`; UsageError: there is none.

    MissingError: `name` ends as a file of prompts does, which the caller did not find. Messages
    name the option, `flag`, that named it, and `expected_content`, what such a file has.
    """
    path = Path(name).expanduser()
    if path.suffix in PROMPT_FILES:
        raise MissingError(f"no such file ({path}): expected {expected_content}. Check {flag}")
    try:
        return make("tasks", Spec.parse(name))
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from error


LIMIT = 1 << 30  # bytes


def paragraphs(path: Path, flag: str) -> Iterator[str]:
    """Yield a text file's paragraphs, parted by empty lines; SpsError, with `flag`: unreadable."""
    text = read_text(path, f"text, as {flag}", LIMIT)
    parts = (part.strip() for part in text.replace("\r\n", "\n").split("\n\n"))
    yield from (part for part in parts if part)


RUN = 13  # words (Brown et al. 2020, appendix C)
SHARE = 0.5  # a text overlaps if more of its runs are known; phrases alone are not
TASKS = ("humaneval", "xsum:data=mini")  # tasks whose texts are installed with packages
HUB = "xsum:data=hub"  # used if it is cached
KEYS = ("prompt", "document", "text")  # columns of a file's rows that may hold the text


class BenchmarkIndex:
    """Texts of the tasks and files `sources`, by runs of words, to detect texts of benchmarks.

    SpsError: a file is missing, or is no data.
    """

    def __init__(self, sources: Iterable[str] = TASKS) -> None:
        self._whole: dict[str, int] = {}
        self._places: list[str] = []
        runs_of_texts = [_distinct("")]
        for name in sources:
            for where, text in _excluded_texts(name):
                self._whole.setdefault(" ".join(text.split()), len(self._places))
                self._places.append(f"{name} {where}")
                runs_of_texts.append(_distinct(text))
        self._counts = np.array([len(text_runs) for text_runs in runs_of_texts[1:]], dtype=np.int64)
        mixed = np.concatenate(runs_of_texts)
        order = mixed.argsort(kind="stable")
        self._runs = mixed[order]
        self._owners = np.repeat(np.arange(len(self._places)), self._counts)[order]

    def of(self, text: str) -> str | None:
        """Return the name of the indexed text that `text` repeats, such as `humaneval HumanEval/3`.

        A text repeats others if half of its runs of `RUN` words are theirs, or half of the runs of
        another are its own; any text if it equals another but for spaces. None: it repeats none.
        """
        if (same := self._whole.get(" ".join(text.split()))) is not None:
            return self._places[same]
        mine = _distinct(text)
        low, high = (self._runs.searchsorted(mine, side) for side in ("left", "right"))
        shared = high > low
        if not shared.any():
            return None
        pairs = zip(low[shared], high[shared], strict=True)
        owners = np.concatenate([self._owners[a:b] for a, b in pairs])
        candidates, times = np.unique(owners, return_counts=True)
        if shared.sum() >= SHARE * len(mine):
            return self._places[int(candidates[times.argmax()])]
        part = times / self._counts[candidates]
        most = int(part.argmax())
        return self._places[int(candidates[most])] if part[most] >= SHARE else None


def excluded_sources(names: Iterable[str]) -> list[str]:
    """Return the sources to exclude: TASKS, XSum if it is cached, and the user's `names`."""
    return [*TASKS, *([HUB] if cached_file(*articles.SPLIT) is not None else []), *names]


def _distinct(text: str) -> np.ndarray:
    """Return the hashes, ascending, of all `RUN` consecutive words; empty of a shorter text."""
    words = text.lower().split()
    runs = (hash(tuple(words[i : i + RUN])) for i in range(len(words) - RUN + 1))
    return np.unique(np.fromiter(runs, dtype=np.int64))


def _excluded_texts(name: str) -> Iterator[tuple[str, str]]:
    """Yield (place, text) of each text of a task or a file; SpsError: neither, or unusable.

    Place: a sample's id, a row or `paragraph 3`. Text: a task's prompt, a row's first of `KEYS`.
    """
    path = Path(name).expanduser()
    if path.suffix == ".txt":
        for number, part in enumerate(paragraphs(path, "`not_from`"), start=1):
            yield f"paragraph {number}", part
    elif path.exists():
        for row in read_rows(path):
            key = next((key for key in KEYS if key in row.values), KEYS[0])
            yield row.where.removeprefix(name).strip(":"), row.text(key)
    else:
        task = find_task(name, "`not_from`", "texts of a test")
        for sample in task.samples(lambda sample: True):
            yield sample.id, sample.prompt


SELF = "self"  # among the prompts: questions that the target writes


def uses_chat(tokenizer: Any, chat: str) -> bool:
    """Return whether prompts use the target's chat template; UsageError: `on` without one."""
    has = bool(getattr(tokenizer, "chat_template", None))
    if chat == "on" and not has:
        raise UsageError("`chat` on: expected a target with a chat template. Leave it out")
    return has and chat != "off"


def asks_itself(options: Training) -> bool:
    """Return whether the target writes prompts of its own."""
    return not options.prompts or SELF in options.prompts


def collect_prompts(
    options: Training, tokenizer: Any, chat: bool, overlap: BenchmarkIndex
) -> list[list[int]]:
    """Return the prompts of files and tasks as token ids, without duplicates, the shortest first.

    Longer prompts than allowed are left out in a chat, else cut at their end; a note counts them.
    Sources are read until there are `count` prompts of all, and a note names one that is not read;
    `self` is skipped. DataError: a text of a benchmark, or a source without a new prompt.
    """
    prompts: dict[tuple[int, ...], None] = {}
    sources = [name for name in options.prompts if name != SELF]
    for name in sources:
        before, longer = len(prompts), 0
        if before == options.count:
            log.info(f"note: {name} (`prompts`) is not read: those before it have all `count`")
            break
        for _, text, _ in _samples(name, "`prompts`", overlap):
            ids = _encode_prompt(text, tokenizer, chat)
            longer += len(ids) > options.prompt_tokens
            if chat and len(ids) > options.prompt_tokens:
                continue
            prompts[tuple(ids[: options.prompt_tokens])] = None
            if len(prompts) == options.count:
                break
        _name_longer(longer, name, "left out" if chat else "cut at their end", options)
        if len(prompts) == before < options.count:
            raise DataError(
                f"no prompts of {options.prompt_tokens} tokens or fewer (`prompts` {name}): "
                "expected one or more. Name another file, or give more `prompt_tokens`"
            )
    return sorted((list(ids) for ids in prompts), key=len)  # a batch is padded to its longest


def references_of(
    options: Training, tokenizer: Any, chat: bool, overlap: BenchmarkIndex
) -> list[tuple[list[int], list[int]]]:
    """Return prompts and their references by people, cut to the length of a training's texts.

    A whole reference ends with the tokenizer's EOS token. Those of prompts that are longer than
    allowed are left out, and counted in a line. DataError: a prompt without one, or of a benchmark.
    """
    references: list[tuple[list[int], list[int]]] = []
    for name in options.references:
        longer = 0
        for where, text, reference in _samples(name, "`references`", overlap):
            if not reference:
                raise DataError(
                    f"{where} has no reference (`references` {name}): expected a text by people "
                    "after each prompt. Give prompts alone by `prompts`"
                )
            prompt = _encode_prompt(text, tokenizer, chat)
            if len(prompt) > options.prompt_tokens:
                longer += 1
                continue
            end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
            ids = encode_text(tokenizer, reference)
            references.append(
                (prompt, [*ids[ids[0] == tokenizer.bos_token_id :], *end][: options.tokens])
            )
        _name_longer(longer, name, "left out with their references", options)
    return references


def _name_longer(count: int, name: str, fate: str, options: Training) -> None:
    """Log how many prompts of a file are too long, and what became of them."""
    if count:
        log.info(
            f"note: {count} prompts of {name} have more than {options.prompt_tokens} tokens "
            f"(`prompt_tokens`): {fate}"
        )


def _encode_prompt(text: str, tokenizer: Any, chat: bool) -> list[int]:
    if chat:
        return encode_chat(tokenizer, [{"role": "user", "content": text}])
    return encode_text(tokenizer, text)


def user_mark(tokenizer: Any) -> list[int]:
    """Return the tokens before the user's words in the target's chat template."""
    ids = zip(*(_encode_prompt(text, tokenizer, True) for text in ("Aa", "9?")), strict=False)
    return [first for first, _ in takewhile(lambda pair: pair[0] == pair[1], ids)]


def bos_prompt(tokenizer: Any, eos: frozenset[int]) -> list[int]:
    """Return the empty prompt of a base model: BOS, else the least of `eos`; UsageError: none."""
    first = tokenizer.bos_token_id
    if first is None:
        first = min(eos, default=None)
    if first is None:
        raise UsageError(
            "no `prompts` for a target without a token that begins or ends a text: expected "
            "something to continue. Name a file with `prompts`"
        )
    return [int(first)]


def _samples(
    name: str, flag: str, overlap: BenchmarkIndex
) -> Iterator[tuple[str, str, str | None]]:
    """Yield (place, prompt, reference or None) of a file or task; DataError: one of `overlap`."""
    path = Path(name).expanduser()
    samples: Iterable[tuple[str, str, str | None]]
    if path.suffix == ".txt":
        parts = enumerate(paragraphs(path, flag), start=1)
        samples = ((f"{path}, paragraph {number}", part, None) for number, part in parts)
    else:
        task = Jsonl(str(path)) if path.is_file() else find_task(name, flag, "prompts")
        task_samples = task.samples(lambda sample: True)
        samples = ((f"{name}: {x.id}", x.prompt, x.reference) for x in task_samples)
    for where, text, reference in samples:
        if (same := overlap.of("\n".join(filter(None, (text, reference))))) is not None:
            raise DataError(
                f"{where} is a prompt of the benchmark, {same} ({flag} {name}): expected texts "
                "that nothing is measured on. Take it out"
            )
        yield where, text, reference
