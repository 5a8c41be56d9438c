"""Token ids of requests: the loader of tokenizers for logs, and counts that logs state."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, MissingError, SpsError, first_line
from spsbench.planning.logs.chats import Chat, LeftOutError, Reply
from spsbench.planning.logs.entries import Request
from spsbench.settings.execution import Access
from spsbench.untrusted import cut, reading

SURROGATE = re.compile("[\ud800-\udfff]")
SLACK = 0.1  # share by which a count of tokens may differ from the log's
FEW = 4  # tokens by which it may differ, for what ends an answer or opens one
UNLIKE = 0.05  # share of requests with other counts above which the answer begins with a warning


@dataclass(slots=True)
class Stated:
    """Counts of tokens that a log states, compared with the tokenizer's.

    Of `requests` with a count, `unlike` differ by more than `SLACK` and `FEW`; these have `stated`
    tokens by the log and `counted` by the tokenizer.
    """

    requests: int = 0
    unlike: int = 0
    stated: int = 0
    counted: int = 0

    def add(self, stated: int | None, counted: int) -> None:
        """Compare the counts of a request; None: the log states none."""
        if stated is not None:
            self.requests += 1
            if abs(stated - counted) > max(FEW, SLACK * stated):
                self.unlike += 1
                self.stated, self.counted = self.stated + stated, self.counted + counted

    def warning(self, what: str) -> str:
        """Return a line if over `UNLIKE` of requests differ in `what`, "tokens in ..."; else ""."""
        if self.unlike <= UNLIKE * self.requests:
            return ""
        return (
            f"{self.unlike:,} of {self.requests:,} requests have {self.stated:,} {what} by the "
            f"log, {self.counted:,} by the tokenizer: it is not the server's, or the log hides "
            "some. The figures are of other tokens than those that were served."
        )


@dataclass(slots=True)
class LogTokenizer:
    """Turns requests into ids.

    Args:
        tokenizer: a tokenizer of the `tokenizers` library; None where the log must hold ids.
        vocab_size: ids below it exist; None where that is unknown.
        template: a tokenizer of transformers with a chat template; None: chats are plain lines.
    """

    tokenizer: Any = None
    vocab_size: int | None = None
    template: Any = None
    answers: Stated = field(default_factory=Stated)
    prompts: Stated = field(default_factory=Stated)
    texts: Stated = field(default_factory=Stated)  # counts of answers in ids that have texts too

    @classmethod
    def of_backend(cls, tokenizer: Any, vocab_size: int, template: Any = None) -> "LogTokenizer":
        """Return one whose tokenizer neither cuts nor pads, however it was saved."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        has_template = template is not None and getattr(template, "chat_template", None)
        return cls(tokenizer, vocab_size, template if has_template else None)

    def of(self, request: Request) -> tuple[list[int], list[int]]:
        """Return the ids of prompt and answer, and compare their numbers with the log's own.

        LeftOutError: no ids and no tokenizer, an answer without a round, ids beyond the vocabulary,
        or a text or chat that cannot be tokenized. A prompt that is not known has no ids.
        """
        if (answer := self._answer(request)) is None:
            raise LeftOutError("texts without token ids, and no tokenizer: name it by `tokenizer`")
        prompt = self._prompt(request.prompt) or []
        if not answer:
            raise LeftOutError("an empty answer")
        if len(answer) <= request.first:
            raise LeftOutError("an answer of one token, which the pass over the prompt gives")
        if self.vocab_size is not None and max([*prompt, *answer]) >= self.vocab_size:
            raise LeftOutError(f"token ids from {self.vocab_size:,} on, beyond the vocabulary")
        self._compare(request, prompt, answer)
        return prompt, answer

    def _compare(self, request: Request, prompt: list[int], answer: list[int]) -> None:
        self.answers.add(request.written, len(answer))
        if prompt and (self.template is not None or not isinstance(request.prompt, Chat)):
            self.prompts.add(request.read, len(prompt))  # else a server's template adds to it
        if self.tokenizer is not None and request.text is not None:
            self.texts.add(len(answer), len(self._texts(parts(request.text)) or ()))

    def _answer(self, request: Request) -> list[int] | None:
        answer = request.answer
        if not isinstance(answer, str):
            return list(answer)
        written = self._written(request.prompt, answer)
        return self._texts(parts(answer) if written is None else [written])

    def _prompt(self, prompt: str | Sequence[int] | None) -> list[int] | None:
        """Return a prompt's ids, empty for None; None: a text without a tokenizer.

        A chat goes through the template, if any; else no special tokens are added. LeftOutError:
        the template refuses, or a lone surrogate.
        """
        if not isinstance(prompt, str):
            return list(prompt or ())
        if self.template is None or not isinstance(prompt, Chat):
            return self._texts(parts(prompt))
        from spsbench.models.tokenizers import encode_chat

        messages, begun = for_template(prompt.messages)
        with refusals():
            ids = encode_chat(self.template, messages, tools=prompt.tools)
        return ids + (self._texts([begun] if begun else []) or [])

    def _written(self, prompt: object, answer: str) -> str | None:
        """Return an answer's thoughts, words and calls as one text, as the template writes them.

        None: there is no template, no chat, or neither thoughts nor calls; the answer was begun by
        the prompt; or the template writes other words. LeftOutError: the template refuses the chat.
        """
        if self.template is None or not isinstance(prompt, Chat) or not isinstance(answer, Reply):
            return None
        if len(answer.parts) == 1 and "tool_calls" not in answer.message:
            return None
        from spsbench.models.chat import render_chat, special_tokens

        messages, begun = for_template(prompt.messages)
        reply = for_template([answer.message, {}])[0][:1]
        texts = []
        for chat, opens in ((messages, True), ([*messages, *reply], False)):
            with refusals():
                spans = render_chat(self.template, chat, "", None, prompt.tools, opens_answer=opens)
            texts.append("".join(span.text for span in spans))
        if begun or not texts[1].startswith(texts[0]):
            return None
        text = texts[1][len(texts[0]) :].rstrip()
        for control in special_tokens(self.template):
            text = text.removesuffix(control)
        words = (reply[0].get("reasoning_content", ""), reply[0]["content"])
        return text if all(word.strip() in text for word in words) else None

    def _texts(self, texts: Sequence[str]) -> list[int] | None:
        """Return the ids of texts, each tokenized by itself; None without a tokenizer."""
        if any(not text.isascii() and SURROGATE.search(text) for text in texts):
            raise LeftOutError("a text with half a surrogate pair")
        if self.tokenizer is None:
            return None
        return [token for text in texts for token in encoded(self.tokenizer, text)]


@lru_cache(maxsize=1024)  # a conversation has the same lines before each of its answers
def encoded(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a text without special tokens around it."""
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def parts(text: str) -> list[str]:
    """Return the parts of a prompt or an answer that are tokenized by themselves."""
    return text.parts if isinstance(text, Chat | Reply) else [text]


def for_template(messages: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Return copies of messages, with arguments of calls as objects, and the answer that is begun.

    An answer is begun by a last message of the assistant, which the copies are without; else "".
    """
    copies = json.loads(json.dumps(list(messages)))
    for message in copies:
        for call in message.get("tool_calls", ()):
            with suppress(ValueError, TypeError, RecursionError):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    is_begun = bool(copies) and copies[-1].get("role") == "assistant"
    return (copies[:-1], copies[-1]["content"]) if is_begun else (copies, "")


@contextmanager
def refusals() -> Iterator[None]:
    """Leave out a chat that the template refuses in this block."""
    try:
        yield
    except SpsError as error:
        raise LeftOutError(f"a chat that the template refuses: {cut(error, 100)}") from error


def log_tokenizer(name: str | None, access: Access) -> LogTokenizer:
    """Return the tokenizer of a file, a folder or a model (fetched); None: one for ids alone.

    A folder's or model's chat template is used too. SpsError: none is there, or an unreadable one.
    """
    if name is None:
        return LogTokenizer()
    path, folder = Path(name).expanduser(), None
    with reading(path, "a tokenizer"):
        is_file = path.is_file()
    if not is_file:
        from spsbench.models.folder import locate
        from spsbench.settings.models import ModelSpec

        folder = locate(ModelSpec(name), access)
        path = folder / "tokenizer.json"
    if not path.is_file():
        raise MissingError(
            f"no tokenizer.json ({path.parent}): expected a fast tokenizer. Name a tokenizer.json"
        )
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare exceptions
        raise DataError(
            f"no tokenizer ({path}: {first_line(error)}): expected a tokenizer.json of tokenizers"
        ) from error
    template = None
    if folder is not None:
        from spsbench.models.tokenizers import load_tokenizer

        template = load_tokenizer(folder, trust_remote_code=False)
    return LogTokenizer.of_backend(
        tokenizer, tokenizer.get_vocab_size(with_added_tokens=True), template
    )
