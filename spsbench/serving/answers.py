"""Answers of engines, read as they come in OpenAI's schema and SGLang's (`wire`).

Time and number of tokens are of one span: the first delta with any generated text, be it an answer,
reasoning or a call of a tool, opens the clock, and tokens that the server counts and does not send
are left out of the count.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spsbench.errors import UnavailableError, as_it_is
from spsbench.serving import wire
from spsbench.serving.wire import (
    Counts,
    Entry,
    Stated,
    first_known,
    key_and_logarithm,
    order_row,
    read_json,
)
from spsbench.untrusted import FieldError, NotJSONError, cut, parse_json

MAX_REASON = 200  # characters of a server's words in a line
ID_KEY = re.compile(r"#[0-9]{1,10}")
BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # how engines print a token of one byte
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

    kind: type[UnavailableError] = UnavailableError  # the error after the last attempt
    words = ""  # the server's
    wait = 0.0  # seconds that the server asks for

    def __init__(self, line: str, **more: Any) -> None:
        super().__init__(line)
        vars(self).update(more)


class AbortedError(UnavailableError):
    """A server that ends every attempt of a request before the text is whole."""


@dataclass(slots=True)
class Answer:
    """One continuation; `msgspec.to_builtins` and `read_json` keep and read it."""

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
    spelled: str = ""  # the texts of the listed tokens; empty where the engine names ids alone

    @property
    def tokens(self) -> int:
        """Return the number of tokens by the engine's count, else as listed, else as arrived."""
        return self.count or len(self.keys if self.ids is None else self.ids) or len(self.stamps)

    def miscount(self, asked: float) -> str:
        """Return why the count is false: above `asked`, unlike its ids, below pieces - 1; or ""."""
        count, pieces = self.count, len(self.stamps)
        if count is not None and (type(count) is not int or count < 0):
            return f"counts {str(count)[:40]} tokens"
        if self.ids is not None and count not in (None, len(self.ids)):
            return f"counts {count} tokens and lists {len(self.ids)} ids"
        if self.tokens > asked:
            return f"{self.tokens} tokens where {asked} were asked for"
        if count is not None and count < pieces - 1:  # the last piece may be text held back
            return f"counts {count} tokens in {pieces} pieces of text"
        return ""

    def is_cut_short(self, asked: int) -> bool:
        """Return whether a limit of the server ended the text before the tokens asked for."""
        finish = (self.finish or "").lower()
        is_limit = finish in ENDS["length"] | ENDS["context"]
        return is_limit and 0 < self.tokens + self.unsent < asked

    def misstatement(self) -> str:
        """Return why listed tokens contradict ids or count, or lack letters of text; else ""."""
        rows, keys, ids = len(self.stated), self.keys, self.ids
        if rows not in (0, len(keys)):
            return f"states probabilities for {rows} of {len(keys)} tokens"
        if keys and ids is not None and len(keys) != len(ids):
            return f"lists log-probabilities of {len(keys)} of {len(ids)} tokens"
        if keys and ids is None and self.count not in (None, len(keys), len(keys) + 1):  # its end
            return f"lists {len(keys)} tokens and counts {self.count}"
        for token, key in zip(ids or (), keys, strict=False):
            if ID_KEY.fullmatch(key) and key != f"#{token}":
                return f"has the log-probability of {key} for the token #{token}"
        if not self.spelled:
            return ""
        whole = (self.text, self.reasoning, self.spelled)
        ascii_only = not all(map(str.isascii, whole))
        text, reasoning, spelled = (letters(part, ascii_only=ascii_only) for part in whole)
        if text not in spelled or reasoning not in spelled:
            return "lists tokens that do not spell its text"
        return ""


class AnswerReader:
    """Reads an answer, whole or in chunks, in OpenAI's schema; `hide` replaces the API key."""

    name = "the OpenAI API"

    def __init__(self, hide: Callable[[Any], Any]) -> None:
        self.hide = hide
        self.answer = Answer("", [], [], [], None)
        self.prompt: Sequence[Sequence[Entry] | None] = ()  # likeliest at each of its tokens
        self._unsent = self._length = 0
        self._pieces: list[str | None] = []  # texts of the listed tokens

    def add(self, at: float, data: bytes) -> bool:
        """Add JSON that came at second `at` to `answer`; return whether it has generated text.

        Text is also reasoning, ids or a call of a tool. AttemptError: no JSON, an error, or an
        unknown finish_reason, which is added nevertheless. FieldError: another schema.
        """
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
        """Add a chunk or whole answer of OpenAI's schema to `answer`; FieldError: another one.

        Text, reasoning, ids, tokens and the time are appended; counts, prompt and end replaced.
        """
        answer, chunk = self.answer, read_json(value, wire.Chunk)
        if usage := chunk.usage:
            answer.prompt_tokens = first_known(usage.prompt_tokens, answer.prompt_tokens)
            answer.count = first_known(usage.completion_tokens, answer.count)
            details = usage.completion_tokens_details
            self._unsent = (details and details.reasoning_tokens) or self._unsent
        for choice in chunk.choices or ():
            delta = choice.delta or choice.message or wire.ContentPart(choice.text)
            thought = delta.reasoning_content or delta.reasoning or delta.refusal or ""
            entries = choice.logprobs.entries if choice.logprobs else []
            self._add_tokens(entries)
            answer.stated += [order_row(entry.top_logprobs) for entry in entries]
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
            self._count(trtllm=choice.speculative_decoding)
        self._count(sglang=(chunk.sglext or {}).get("spec_tokens_details"))
        for part in (chunk, *(chunk.choices or ())):
            self._count(vllm=(part.metrics or {}).get("speculative_decoding"))
            timings = part.timings or {}
            self._count(llama=timings if timings.get("draft_n") is not None else None)

    def _add_tokens(self, entries: Sequence[Entry]) -> None:
        """Append keys, logarithms and texts of listed tokens; FieldError: a logarithm is null."""
        for entry in entries:
            key, logprob = key_and_logarithm(entry)
            self.answer.keys.append(key)
            self.answer.own.append(logprob)
            self._pieces.append(entry.text)

    def _count(self, **counts: Any) -> None:
        """Keep an engine's counts of drafts; of counts that cannot be true only the reason."""
        try:
            if any(counts.values()):
                self.answer.counts = read_json(counts, Counts)
        except FieldError as error:
            self.answer.counts = Counts(wrong=str(error))

    def done(self) -> Answer:
        """Complete `answer`, and return it with the API key hidden in its texts.

        Without ids they are read from keys such as `#17`. Counted reasoning that did not come moves
        from `count` to `unsent`. `spelled` is the tokens' text. FieldError: tokens spell the key.
        """
        answer, pieces = self.answer, self._pieces
        if answer.ids is None and answer.keys and all(map(ID_KEY.fullmatch, answer.keys)):
            answer.ids = [int(key[1:]) for key in answer.keys]
        if answer.count and answer.ids is None and not answer.keys and not answer.reasoning:
            answer.unsent = min(self._unsent, answer.count)
            answer.count -= answer.unsent
        answer.text, answer.reasoning = self.hide(answer.text), self.hide(answer.reasoning)
        if None not in pieces:
            answer.spelled = "".join(map(str, pieces))
        for spelled in ("".join(answer.keys), answer.spelled):
            if self.hide(spelled) != spelled:
                raise FieldError("tokens: they spell the API key, expected a text without it")
        return answer


class SglangReader(AnswerReader):
    """Reads SGLang's /generate; each event of a stream holds the whole text so far."""

    def _add(self, at: float, value: Any) -> None:
        """Set `answer` by an event, which repeats all; append times and sizes; else FieldError."""
        event, answer = read_json(value, wire.Generated), self.answer
        meta = read_json(event.meta_info, wire.MetaInfo)
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
        answer.keys, answer.own, self._pieces = [], [], []
        self._add_tokens(meta.output_token_logprobs or [])
        answer.stated = list(map(order_row, meta.output_top_logprobs or ()))
        self.prompt = meta.input_top_logprobs or ()
        self._count(sglang=event.meta_info)


def reason_in(value: Any) -> str:
    """Return the message in an error page's JSON or text, in one line; a default if it is empty."""
    for name in ("error", "message", "detail"):
        if isinstance(value, dict) and name in value:
            value = value[name]
    return as_it_is(cut(value, MAX_REASON)) or "no reason given"


def letters(text: str, *, ascii_only: bool) -> str:
    """Return the letters and digits of a text; blanks, marks and half characters print variously.

    Bytes such as `<0x0A>` are left out; with `ascii_only` letters too that print byte by byte.
    """
    text = BYTE.sub("", text)
    return "".join(c for c in text if c.isalnum() and (c.isascii() or not ascii_only))
