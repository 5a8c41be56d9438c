"""Answers of engines, read as they come in OpenAI's schema and SGLang's (`wire`).

Time and number of tokens are of one span: the first delta with any generated text, be it an answer,
reasoning or a call of a tool, opens the clock, and tokens that the server counts and does not send
are left out of the count.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from spsbench.errors import UnavailableError, as_it_is
from spsbench.serving import wire
from spsbench.serving.wire import Counts, Entry, Stated, first, ordered, read, stated
from spsbench.untrusted import FieldError, NotJSONError, cut, parse_json

MAX_REASON = 200  # characters of a server's words in a line
ID_KEY = re.compile(r"#[0-9]{1,10}")
ENDS = {
    "length": frozenset(("length", "max_tokens", "max_new_tokens", "max_length")),
    "context": frozenset(("context", "context_length", "model_length")),
    "stop": frozenset(
        ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call")
    ),
}
"""End of a text -> the engines' words for it; after any other the text is not whole."""


class AttemptError(Exception):
    """An attempt without an answer, after which another is made."""

    kind: type[UnavailableError] = UnavailableError  # of the error after the last attempt
    words = ""  # of the server
    wait = 0.0  # seconds that the server asks for

    def __init__(self, line: str, **more: Any) -> None:
        super().__init__(line)
        vars(self).update(more)


class AbortedError(UnavailableError):
    """A server that ends every attempt of a request before the text is whole."""


@dataclass(slots=True)
class Answer:
    """One continuation."""

    text: str
    keys: list[str]  # keys of the tokens that the engine lists
    own: list[float]  # log probability of each token
    stated: list[Stated]  # likeliest tokens at each token
    finish: str | None
    ids: list[int] | None = None
    prompt_ids: list[int] | None = None
    prompt_tokens: int | None = None
    count: int | None = None  # tokens that came, by the engine's count
    counts: Counts = field(default_factory=Counts)
    stamps: list[float] = field(default_factory=list)  # arrival times of text in seconds
    sizes: list[int] = field(default_factory=list)  # tokens that came at each; 0 = not stated
    stopped_by: str | None = None  # the stop string, where the engine says so
    seconds: float = 0.0
    attempts: int = 1
    reasoning: str = ""  # generated text that is no part of the answer
    unsent: int = 0  # tokens that the engine counts beside `count`, and does not send

    @property
    def tokens(self) -> int:
        """Return the number of tokens by the engine's count, else as listed, else as arrived."""
        return self.count or len(self.keys if self.ids is None else self.ids) or len(self.stamps)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a line of a file."""
        return dict(msgspec.to_builtins(self))

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Answer":
        """Read the values written by `to_json`."""
        return read(values, cls)


class Reader:
    """Reads an answer, whole or in chunks, in OpenAI's schema; `hide` replaces the API key."""

    name = "the OpenAI API"

    def __init__(self, hide: Callable[[Any], Any]) -> None:
        self.hide = hide
        self.answer = Answer("", [], [], [], None)
        self.prompt: Sequence[Sequence[Entry] | None] = ()  # likeliest at each of its tokens
        self._unsent = self._length = 0

    def add(self, at: float, data: bytes) -> bool:
        """Read JSON that came at a time, and return whether it holds generated text."""
        try:
            value = self.hide(parse_json(data, strict=False))
        except NotJSONError as error:
            raise AttemptError(str(error)) from error
        if isinstance(value, dict) and value.get("error") and not value.get("choices"):
            raise AttemptError(f"an error in the stream ({reason_in(value)})")
        pieces = len(self.answer.stamps)
        self._add(at, value)
        finish = self.answer.finish
        if finish is not None and not any(finish.lower() in words for words in ENDS.values()):
            line = f"the text is not whole: finish_reason {cut(finish)}"
            raise AttemptError(line, kind=AbortedError)
        return len(self.answer.stamps) > pieces

    def _add(self, at: float, value: Any) -> None:
        answer, chunk = self.answer, read(value, wire.Chunk)
        if usage := chunk.usage:
            answer.prompt_tokens = first(usage.prompt_tokens, answer.prompt_tokens)
            answer.count = first(usage.completion_tokens, answer.count)
            details = usage.completion_tokens_details
            self._unsent = (details and details.reasoning_tokens) or self._unsent
        for choice in chunk.choices or ():
            delta = choice.delta or choice.message or wire.Part(choice.text)
            thought = delta.reasoning_content or delta.reasoning or delta.refusal or ""
            entries = choice.logprobs.entries if choice.logprobs else []
            self._add_tokens(entries)
            answer.stated += [ordered(entry.top_logprobs) for entry in entries]
            ids = choice.token_ids or choice.tokens or []
            if ids:
                answer.ids = answer.ids or []
                answer.ids += ids
            prompt_ids = choice.prompt_token_ids or chunk.prompt_token_ids
            answer.prompt_ids = prompt_ids or answer.prompt_ids
            answer.finish = choice.finish_reason or answer.finish
            if isinstance(choice.stop_reason, str):
                answer.stopped_by = choice.stop_reason
            if delta.content or thought or ids or delta.tool_calls or delta.function_call:
                answer.text += delta.content or ""
                answer.reasoning += thought
                answer.stamps.append(at)
                answer.sizes.append(len(ids or entries))
            self.prompt = [
                [wire.TokenLogprob(logprob=e.logprob, id=i) for i, e in (row or {}).items()]
                for row in choice.prompt_logprobs or ()
            ]
        for part in (chunk, *(chunk.choices or ())):
            self._count(vllm=(part.metrics or {}).get("speculative_decoding"))
            self._count(llama=part.timings if (part.timings or {}).get("draft_n") else None)

    def _add_tokens(self, entries: Sequence[Entry]) -> None:
        for key, logprob in map(stated, entries):
            self.answer.keys.append(key)
            self.answer.own.append(logprob)

    def _count(self, **counts: Any) -> None:
        """Keep an engine's counts of drafts; of counts that cannot be true only the reason."""
        try:
            if any(counts.values()):
                self.answer.counts = read(counts, Counts)
        except FieldError as error:
            self.answer.counts = Counts(wrong=str(error))

    def done(self) -> Answer:
        """Return the answer, whose ids and tokens agree, without the key in any part."""
        answer = self.answer
        if answer.ids is None and answer.keys and all(map(ID_KEY.fullmatch, answer.keys)):
            answer.ids = [int(key[1:]) for key in answer.keys]
        if answer.count and answer.ids is None and not answer.keys and not answer.reasoning:
            answer.unsent = min(self._unsent, answer.count)
            answer.count -= answer.unsent
        rows, keys = len(answer.stated), len(answer.keys)
        if rows not in (0, keys):
            raise FieldError(f"top_logprobs: {rows} rows, expected one for each of {keys} tokens")
        for token, key in zip(answer.ids or (), answer.keys, strict=False):
            if ID_KEY.fullmatch(key) and key != f"#{token}":
                raise FieldError(f"token {token} has the logprobs of {key}, expected its own")
        answer.text, answer.reasoning = self.hide(answer.text), self.hide(answer.reasoning)
        spelled = "".join(answer.keys)
        if self.hide(spelled) != spelled:
            raise FieldError("tokens: they spell the API key, expected a text without it")
        return answer


class SglangReader(Reader):
    """Reads SGLang's /generate; each event of a stream holds the whole text so far."""

    def _add(self, at: float, value: Any) -> None:
        event, answer = read(value, wire.Generated), self.answer
        meta = read(event.meta_info, wire.MetaInfo)
        length = len(event.output_ids or event.text)
        if length > self._length:
            answer.stamps.append(at)
            answer.sizes.append(length - self._length if event.output_ids else 0)
            self._length = length
        answer.text, answer.ids = event.text, event.output_ids or None
        prompt_ids = [row.id for row in meta.input_token_logprobs or ()]
        answer.prompt_ids = prompt_ids or answer.prompt_ids
        answer.prompt_tokens, answer.count = meta.prompt_tokens, meta.completion_tokens
        finish = meta.finish_reason
        if isinstance(finish, wire.Finish):
            answer.stopped_by = finish.matched if isinstance(finish.matched, str) else None
            finish = finish.type
        answer.finish = finish
        answer.keys, answer.own = [], []
        self._add_tokens(meta.output_token_logprobs or [])
        answer.stated = list(map(ordered, meta.output_top_logprobs or ()))
        self.prompt = meta.input_top_logprobs or ()
        self._count(sglang=event.meta_info)


def reason_in(value: Any) -> str:
    """Return the message in an error page's JSON in one line."""
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and name in value:
            value = value[name]
    return as_it_is(cut(value, MAX_REASON)) or "no reason given"
