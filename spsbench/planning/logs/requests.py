"""Served requests, read from logs of several formats, told from each other by their content.

A format is a function from the object of a line to requests. Lines that hold no usable request are
left out and counted by reason; a file of which nothing is usable is refused.
"""

import gzip
import json
import math
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from spsbench.errors import DataError, MissingError, PermissionDeniedError
from spsbench.hardware.files import open_file
from spsbench.metrics.intervals import Floats

LINE_BYTES = 64 << 20  # of a line; a longer one is left out
DOCUMENT_BYTES = 1 << 30  # of a file that is one JSON document
TOKEN_ID_END = 1 << 24  # no vocabulary has as many tokens
ROUNDING = 1e-3  # above 0, which servers' float16 and bfloat16 log-probabilities reach


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A served request: ids, or texts that a tokenizer turns into ids."""

    id: str
    prompt: str | Sequence[int] | None  # None: only its length or nothing is known
    answer: str | Sequence[int]
    text: str | None = None  # of an answer whose ids are logged
    logprobs: Sequence[float] | None = None  # of each token of the answer, in nats
    top_logprobs: Sequence[Sequence[float]] | None = None  # of each place, the likeliest tokens
    probabilities: Floats | None = None  # of each token under the law that it was drawn from
    temperature: float | None = None
    group: str | None = None
    created: float | None = None
    recorded: Mapping[str, Sequence[int]] = field(default_factory=dict)  # tokens that another
    # engine's drafter had right at each position, by its name

    @property
    def has_ids(self) -> bool:
        """Return whether prompt and answer are token ids."""
        return not isinstance(self.answer, str) and not isinstance(self.prompt, str)


class LeftOutError(ValueError):
    """A line that holds no usable request; its text is the reason, equal for lines alike."""


class Format(NamedTuple):
    """A format of logs."""

    name: str
    keys: frozenset[str]  # that an object of it has
    requests: Any  # (object, its number) -> iterable of requests


@dataclass(slots=True)
class LogReader:
    """The requests of some files, in the order of their lines.

    Args:
        paths: files, `-` for standard input, or pipes; gzip is told by its first bytes.
        prompts: prompts by id or by number, for logs that hold none.
        folders: reads a folder; None: folders are refused.

    Attributes:
        left_out: how many lines were left out, by reason.
        formats: names of the formats that were met.
    """

    paths: Sequence[Path]
    prompts: Mapping[str, str] = field(default_factory=dict)
    folders: Callable[[Path], Iterator["Request"]] | None = None
    left_out: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    total: int = 0  # bytes of all files; 0 where they are pipes
    done: int = 0  # bytes read so far
    _batch: dict[str, dict[str, Any]] = field(default_factory=dict)  # custom_id -> request's body

    def __post_init__(self) -> None:
        files = [path for path in self.paths if path.is_file()]
        whole = len(files) == len(self.paths)
        self.total = sum(path.stat().st_size for path in files) if whole else 0

    def __str__(self) -> str:
        return f"{100 * self.done / self.total:.0f} % of the log" if self.total else "the log"

    def __iter__(self) -> Iterator[Request]:
        before = 0
        for path in self.paths:
            if path.is_dir() and self.folders is not None:
                self.formats["run of sps bench"] += 1
                yield from self.folders(path)
                continue
            with open_log(path) as (file, raw):
                for number, entry in self._objects(file, path):
                    if self.total:
                        self.done = before + raw.tell()
                    yield from self._of(entry, number)
            before = self.done

    def _of(self, entry: object, number: int) -> Iterator[Request]:
        try:
            if not isinstance(entry, dict):
                raise LeftOutError("no JSON object")
            if "custom_id" in entry and "body" in entry:  # half of a pair of OpenAI batch files
                self._batch[str(entry["custom_id"])] = of_type(entry, "body", dict)
                return
            form = next((form for form in FORMATS if form.keys <= entry.keys()), None)
            if form is None:
                raise LeftOutError("no answer in a known field")
            if form.name == BATCH:
                entry = {**entry, "request": self._batch.pop(str(entry["custom_id"]), {})}
            self.formats[form.name] += 1
            for request in form.requests(entry, number):
                if request.prompt is None and self.prompts:
                    request = replace(request, prompt=self.prompts.get(request.id))
                yield request
        except LeftOutError as reason:
            self.left_out[str(reason)] += 1

    def _objects(self, file: IO[bytes], path: Path) -> Iterator[tuple[int, object]]:
        """Yield the objects of a file with their numbers: one a line, or those of one document."""
        first = file.readline(LINE_BYTES)
        begin = first.lstrip()[:1]
        if begin == b"[" or (begin == b"{" and first.strip() == b"{"):
            yield from enumerate(self._document(first, file, path))
            return
        number, line = 0, first
        while line:
            if len(line) == LINE_BYTES and not line.endswith(b"\n"):
                self.left_out[f"a line above {LINE_BYTES >> 20} MiB"] += 1
                while line and not line.endswith(b"\n"):
                    line = file.readline(LINE_BYTES)
            elif line.strip():
                try:
                    yield number, json.loads(line)
                except (ValueError, RecursionError):
                    cut = "" if line.endswith(b"\n") else " (the last line, cut off)"
                    self.left_out[f"no JSON{cut}"] += 1
            number += 1
            line = file.readline(LINE_BYTES)

    def _document(self, first: bytes, file: IO[bytes], path: Path) -> Iterable[object]:
        text = first + file.read(DOCUMENT_BYTES - len(first) + 1)
        if len(text) > DOCUMENT_BYTES:
            raise DataError(
                f"a JSON document above {DOCUMENT_BYTES >> 30} GiB ({path}): expected one request "
                "a line, which is read bit by bit. Convert it, for instance with jq -c '.[]'"
            )
        try:
            document = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(
                f"no JSON ({path}: {error}): expected a list of requests, or one a line"
            ) from error
        return document if isinstance(document, list) else [document]


@contextmanager
def open_log(path: Path) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a log: a file, a pipe, or `-` for standard input; gzip is told by its first bytes.

    Yields the file to read, and the one whose position says how far it is read.

    Raises:
        MissingError, PermissionDeniedError, DataError: no file that can be read.
    """
    if str(path) == "-":
        yield sys.stdin.buffer, sys.stdin.buffer
        return
    if path.is_dir():
        raise DataError(f"a folder ({path}): expected a log file, or the folder of a run")
    if not path.exists():
        raise MissingError(f"no file {path}: expected a log of served requests. Check the path")
    try:
        with open_file(path) as file:
            if file.peek(2)[:2] == b"\x1f\x8b":
                with gzip.open(file) as unpacked:
                    yield unpacked, file  # type: ignore[misc]
            else:
                yield file, file
    except PermissionError as error:
        raise PermissionDeniedError(f"cannot read {path}: expected a readable log") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"damaged gzip ({path}: {error}): expected a whole file") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}. Expected a file or pipe") from error


def of_type(entry: Mapping[str, Any], key: str, kind: type | tuple[type, ...]) -> Any:
    """Return a field.

    Raises:
        LeftOutError: it is missing, or of another type.
    """
    value = entry.get(key)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise LeftOutError(f"no usable {key}")
    return value


def token_ids(entry: Mapping[str, Any], key: str) -> list[int] | None:
    """Return a field of token ids, None without one.

    Raises:
        LeftOutError: anything but a list of ids.
    """
    ids = entry.get(key)
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(
        type(token) is int and 0 <= token < TOKEN_ID_END for token in ids
    ):
        raise LeftOutError(f"{key} that are no token ids")
    return ids


def number(entry: Mapping[str, Any], key: str) -> float | None:
    """Return a finite number, None where there is none."""
    value = entry.get(key)
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if usable and math.isfinite(value) else None  # type: ignore[arg-type]


def name(entry: Mapping[str, Any], index: int, *keys: str) -> str:
    """Return the first of some fields that names the request, else its number."""
    for key in keys:
        value = entry.get(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
    return str(index)


def conversation(messages: object) -> str:
    """Return messages as one text, a line `role: content` each; templates belong to models."""
    if not isinstance(messages, list):
        raise LeftOutError("no usable messages")
    parts = []
    for message in messages:
        if not isinstance(message, dict):
            raise LeftOutError("no usable messages")
        content = message.get("content", message.get("value"))
        if isinstance(content, list):  # parts, of which texts are read
            content = "".join(str(part.get("text", "")) for part in content if type(part) is dict)
        role = message.get("role", message.get("from", ""))
        parts.append(f"{role}: {content if isinstance(content, str) else ''}")
    return "\n".join([*parts, "assistant: "])


def of_line(entry: dict[str, Any], index: int) -> Iterator[Request]:
    """Yield the request of a plain line: `prompt` or `messages`, and an answer."""
    answer = next((entry[key] for key in ANSWERS if isinstance(entry.get(key), str)), None)
    ids = next((ids for key in ANSWER_IDS if (ids := token_ids(entry, key)) is not None), None)
    if answer is None and ids is None:
        raise LeftOutError("no answer in a known field")
    prompt: str | Sequence[int] | None = token_ids(entry, "prompt_token_ids")
    if prompt is None or ids is None:  # texts are tokenized together
        plain = entry.get("prompt")
        if isinstance(plain, str):
            prompt = plain if ids is None else prompt
        elif "messages" in entry and ids is None:
            prompt = conversation(entry["messages"])
    logprobs, top = logged(entry.get("logprobs"))
    yield Request(
        id=name(entry, index, "id", "request_id", "custom_id"),
        prompt=prompt,
        answer=ids if ids is not None else answer or "",
        text=answer if ids is not None else None,
        logprobs=logprobs,
        top_logprobs=top,
        temperature=number(entry, "temperature"),
        group=entry["group"] if isinstance(entry.get("group"), str) else None,
        created=number(entry, "created"),
        recorded=dict(recorded(entry)),
    )


def recorded(entry: Mapping[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """Yield drafters whose rounds were recorded at every position, as SpecDecode-Bench does.

    `NAME: {"acc_len": [...]}` holds the tokens of a round begun at each, bonus included.
    """
    for key, value in entry.items():
        lengths = value.get("acc_len") if isinstance(value, dict) else None
        if isinstance(lengths, list) and all(type(n) is int and 0 < n < 1024 for n in lengths):
            yield key, [n - 1 for n in lengths]


def logged(values: object) -> tuple[list[float] | None, list[list[float]] | None]:
    """Return the log-probabilities of tokens and of the likeliest ones, from any form of them.

    Numbers, OpenAI's `content` of objects, or its older `token_logprobs` and `top_logprobs`. What
    is missing for some token is missing for all: None.
    """
    if isinstance(values, dict):
        content = values.get("content")
        if isinstance(content, list):
            items = [item if isinstance(item, dict) else {} for item in content]
            tops = [item.get("top_logprobs") for item in items]
            return _numbers([item.get("logprob") for item in items]), _tops(tops)
        return _numbers(values.get("token_logprobs")), _tops(values.get("top_logprobs"))
    return _numbers(values), None


def _numbers(values: object) -> list[float] | None:
    if not isinstance(values, list):
        return None
    for value in values:
        if type(value) not in (int, float) or not -math.inf < value <= ROUNDING:
            return None
    return [min(float(value), 0.0) for value in values]


def _tops(places: object) -> list[list[float]] | None:
    if not isinstance(places, list):
        return None
    tops = []
    for place in places:
        if isinstance(place, dict):
            values: object = list(place.values())
        elif isinstance(place, list):
            values = [item.get("logprob") if isinstance(item, dict) else None for item in place]
        else:
            return None
        numbers = _numbers(values)
        if not numbers:
            return None
        tops.append(numbers)
    return tops


def of_batch(entry: dict[str, Any], index: int) -> Iterator[Request]:
    """Yield the request of a line of OpenAI batch output, with the body of its request."""
    response = of_type(entry, "response", dict)
    body = response.get("body")
    if not isinstance(body, dict) or not isinstance(body.get("choices"), list):
        raise LeftOutError("a response without choices")
    question = entry["request"]
    prompt: str | None = None
    if "messages" in question:
        prompt = conversation(question["messages"])
    elif isinstance(question.get("prompt"), str):
        prompt = question["prompt"]
    for number_, choice in enumerate(body["choices"]):
        if not isinstance(choice, dict):
            raise LeftOutError("a response without choices")
        message = choice.get("message")
        text = message.get("content") if isinstance(message, dict) else choice.get("text")
        if not isinstance(text, str):
            raise LeftOutError("a choice without text")
        ids = token_ids(choice, "token_ids")
        logprobs, top = logged(choice.get("logprobs"))
        yield Request(
            id=f"{entry['custom_id']}" + (f"/{number_}" if number_ else ""),
            prompt=token_ids(body, "prompt_token_ids") if ids is not None else prompt,
            answer=ids if ids is not None else text,
            text=text if ids is not None else None,
            logprobs=logprobs,
            top_logprobs=top,
            temperature=number(question, "temperature"),
            created=number(body, "created"),
        )


def of_conversation(entry: dict[str, Any], index: int) -> Iterator[Request]:
    """Yield each answer of a conversation of ShareGPT, after the turns before it."""
    turns = of_type(entry, "conversations", list)
    for place, turn in enumerate(turns):
        speaker = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
        if speaker in ("gpt", "assistant", "model", "chatgpt") and place:
            answer = turn.get("value", turn.get("content"))
            if isinstance(answer, str) and answer:
                yield Request(
                    id=f"{name(entry, index, 'id')}/{place}",
                    prompt=conversation(turns[:place]),
                    answer=answer,
                )


def of_bench(entry: dict[str, Any], index: int) -> Iterator[Request]:
    """Yield the requests of `vllm bench serve --save-detailed`, which holds no prompts."""
    for place, answer in enumerate(of_type(entry, "generated_texts", list)):
        if isinstance(answer, str) and answer:
            yield Request(id=str(place), prompt=None, answer=answer)


ANSWERS = ("completion", "response", "output", "generated_text", "answer")
ANSWER_IDS = ("token_ids", "generated_token_ids", "output_token_ids", "completion_token_ids")
BATCH = "OpenAI batch output"
FORMATS = (
    Format(BATCH, frozenset({"custom_id", "response"}), of_batch),
    Format("ShareGPT conversations", frozenset({"conversations"}), of_conversation),
    Format("vllm bench serve", frozenset({"generated_texts"}), of_bench),
    *(Format("lines", frozenset({key}), of_line) for key in (*ANSWERS, *ANSWER_IDS)),
)


class Encoder(Protocol):
    """Text -> token ids."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids of a text, without special tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""


@dataclass(slots=True)
class Tokens:
    """Turns requests into ids, and compares the log's ids with a tokenizer's.

    Args:
        encoder: None where the log must hold ids.
        vocab_size: ids below it exist; None where that is unknown.

    Attributes:
        compared: requests whose ids and text were both there; `different`, how many disagreed.
    """

    encoder: Encoder | None = None
    vocab_size: int | None = None
    compared: int = 0
    different: int = 0

    def of(self, request: Request) -> tuple[list[int], list[int]]:
        """Return the ids of prompt and answer.

        Raises:
            LeftOutError: there are none, or ids beyond the vocabulary.
        """
        if request.has_ids:
            prompt, answer = list(request.prompt or ()), list(request.answer)
            if self.encoder is not None and request.text is not None:
                self.compared += 1
                self.different += self.encoder.decode(answer) != request.text  # type: ignore[arg-type]
        elif self.encoder is None:
            raise LeftOutError("texts without token ids, and no tokenizer")
        else:
            prompt_text = request.prompt if isinstance(request.prompt, str) else ""
            prompt = list(self.encoder.encode(prompt_text))
            answer = list(self.encoder.encode(str(request.answer)))
        if not answer:
            raise LeftOutError("an empty answer")
        ids: list[Any] = [*prompt, *answer]
        if self.vocab_size is not None and max(ids) >= self.vocab_size:
            raise LeftOutError(f"token ids from {self.vocab_size:,} on, beyond the vocabulary")
        return prompt, answer  # type: ignore[return-value]
