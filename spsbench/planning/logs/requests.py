"""Logs of served requests: files, pipes and folders, read line by line, and their token ids.

Lines that hold no usable request are left out and counted by reason (`entries`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from spsbench.planning.logs.account import Account
from spsbench.planning.logs.chats import LeftOutError, request_prompt
from spsbench.planning.logs.entries import (
    Request,
    fields_of,
    iterate_entries,
    processed_by,
    requests_in,
    temperature_of,
)
from spsbench.planning.logs.files import WHAT, open_log, values_of
from spsbench.untrusted import cut, reading

MAX_REASONS = 64
OTHER_REASONS = "other reasons"
MOST_SHOWN, MOST_WORDS = 3, 200  # reasons in an error, and characters of each
BATCHES = {"OpenAI batch output", "Anthropic batch"}


@dataclass(slots=True)
class RequestReader:
    """The requests of some files, in the order of their lines.

    Answers of an OpenAI batch that come before their requests wait for them. `paths` are files, `-`
    for standard input, or pipes; gzip is recognised by its first bytes. `prompts` has prompts by id
    or by number, for logs that hold none. `folders` reads a folder; None: folders are refused.
    `unread_counts`: whether requests count that have text which is not read.

    `left_out` counts the lines that were left out, by reason; `unread` the requests with text in a
    field that is not read, by its name; `formats` the lines of each format; `unanswered` the
    requests of batches without an answer.
    """

    paths: Sequence[Path]
    prompts: Mapping[str, str] = field(default_factory=dict)
    folders: Callable[[Path], Iterator["Request"]] | None = None
    unread_counts: bool = False
    left_out: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    total: int = 0  # bytes of all files; 0 where they are pipes
    done: int = 0  # bytes read so far
    _sent: dict[str, Any] = field(default_factory=dict)  # custom_id -> request; None = two
    _answered: set[str] = field(default_factory=set)  # custom_ids of answers with a request
    unanswered: int = 0
    _traced: set[int] = field(default_factory=set)  # generations, by trace and answer
    _waiting: list[tuple[str, Request]] = field(default_factory=list)  # custom_id, answer

    def __post_init__(self) -> None:
        named = [path for path in self.paths if str(path) != "-"]
        for path in named:
            with reading(path, WHAT):
                path.stat()
        whole = named == [*self.paths] and all(path.is_file() for path in named)
        self.total = sum(path.stat().st_size for path in named) if whole else 0

    def __str__(self) -> str:
        return f"{100 * self.done / self.total:.0f} % of the log" if self.total else "the log"

    def __iter__(self) -> Iterator[Request]:
        for request in self._requests():
            if reason := self._count_unread(request):
                self.leave_out(reason)
                continue
            if request.prompt is None and self.prompts:
                request = replace(request, prompt=self.prompts.get(request.id))
            yield request

    def leave_out(self, reason: object, fields: str = "") -> None:
        """Count a line without a usable request, and its fields; late reasons count as others."""
        words = f"{reason}; {fields}" if fields else str(reason)
        if words not in self.left_out and len(self.left_out) >= MAX_REASONS:
            words = OTHER_REASONS
        self.left_out[words] += 1

    def reasons(self) -> str:
        """Return the top reasons and counts of left out lines and requests; none: "it is empty"."""
        frequent = self.left_out.most_common(MOST_SHOWN)
        words = [f"{count:,} lines: {cut(why, MOST_WORDS)}" for why, count in frequent]
        if len(self.left_out) > len(frequent):
            words.append(f"{len(self.left_out) - len(frequent):,} other reasons")
        if self.unanswered:
            words.append(
                f"{self.unanswered:,} requests of a batch without an answer: name the output of "
                "the batch, too"
            )
        return "; ".join(words) or "it is empty"

    def _count_unread(self, request: Request) -> str:
        """Count the fields of a request that are not read, return ""; or say why it is left out.

        It is left out where, without `unread_counts`, such a field may be of the prompt or the
        answer, and where its trace held the same answer before.
        """
        if request.unread_inside and not self.unread_counts:
            return (
                f"text that is not read in a request or an answer: {request.unread_inside[0]} "
                "(`unread` counts such requests)"
            )
        if request.trace is not None:
            key = hash((request.trace, str(request.answer)))
            if key in self._traced:
                return "a generation that is in its trace again"
            self._traced.add(key)
        for path in (*request.unread, *request.unread_inside):
            self.unread[path if len(self.unread) < MAX_REASONS else OTHER_REASONS] += 1
        return ""

    def _requests(self) -> Iterator[Request]:
        """Yield all requests, those that waited in a batch last; count by reason what is left out.

        Folders are read by `folders`. `done` follows the bytes that were read; at the end
        `unanswered` is set. SpsError: a file that cannot be read.
        """
        before = 0
        for path in self.paths:
            if self.folders is not None and str(path) != "-" and path.is_dir():
                self.formats["run of sps bench"] += 1
                yield from self.folders(path)
                continue
            within = 0  # entries of lines after the first of each: numbers go on, none comes twice
            with open_log(path) as (file, raw):
                for number, value in values_of(file, path, self.leave_out):
                    if self.total:
                        self.done = before + raw.tell()
                    for place, (entry, broken) in enumerate(iterate_entries(value)):
                        within += place > 0
                        if broken:
                            self.leave_out(broken)
                            continue
                        try:
                            yield from self._of(entry, number + within)
                        except LeftOutError as reason:
                            self.leave_out(reason, fields_of(entry))
                        except RecursionError:
                            self.leave_out("JSON nested too deeply")
            before = self.done
        for custom_id, answer in self._waiting:
            self._answered.add(custom_id)
            try:
                yield self._joined(custom_id, answer)
            except LeftOutError as reason:
                self.leave_out(reason, answer.fields)
        self.unanswered = len(self._sent.keys() - self._answered)

    def _of(self, entry: object, number: int) -> Iterator[Request]:
        """Yield the requests of an entry; keep a half of a batch's request until the other comes.

        `number` is that of its line. LeftOutError: it is no object, or holds no usable request.
        """
        if not isinstance(entry, dict):
            raise LeftOutError("no JSON object")
        sent = entry.get("body", entry.get("params"))
        custom_id, answer = str(entry.get("custom_id")), entry.get("response", entry.get("result"))
        if "custom_id" in entry and answer is None and sent is not None:
            self._keep(custom_id, entry, sent)
            return
        form, requests = requests_in(entry, number)
        self.formats[form] += 1
        for request in requests:
            if form not in BATCHES or sent is not None:
                yield request
            elif custom_id in self._sent and not self._waiting:
                self._answered.add(custom_id)
                yield self._joined(custom_id, request)
            else:
                self._waiting.append((custom_id, request))

    def _keep(self, custom_id: str, entry: dict[str, Any], body: object) -> None:
        """Keep the prompt and the sampling of a batch's request until its answer comes.

        The next request of an id replaces an answered one (a later batch); if it differs from one
        that waits, `_joined` refuses the id. LeftOutError: an invalid prompt or temperature.
        """
        account = Account(entry)
        sampling = [body] if isinstance(body, dict) else []
        drawn = temperature_of(*sampling), processed_by(*sampling)
        sent = request_prompt(account, body), *drawn, tuple(account.unread()[1])
        if custom_id in self._sent and custom_id not in self._answered:
            sent = sent if sent == self._sent[custom_id] else None  # type: ignore[assignment]
        self._sent[custom_id] = sent
        self._answered.discard(custom_id)

    def _joined(self, custom_id: str, answer: Request) -> Request:
        """Return an answer with the prompt and the sampling of its request, its own without one.

        LeftOutError: two requests have the id.
        """
        if (sent := self._sent.get(custom_id, (None, None, (), ()))) is None:
            raise LeftOutError("a custom_id that two requests have")
        prompt, temperature, processed, unread = sent
        return replace(
            answer,
            prompt=answer.prompt if prompt is None else prompt,
            temperature=answer.temperature if temperature is None else temperature,
            processed=answer.processed or processed,
            unread_inside=(*answer.unread_inside, *unread),
        )
