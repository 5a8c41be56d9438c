"""Chats: template detection, the model's own sampling options, and template rendering.

A template is a program that comes with the model: it runs in a child process with limits on its
time, memory and output.
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.checkpoints.config import NEUTRAL, TOKENIZER_LIMIT, expand_path, read_object
from spsbench.errors import DataError
from spsbench.hardware.child import Child
from spsbench.models.folder import is_bundled_name, locate
from spsbench.models.gguf.header import named_gguf, read_header
from spsbench.models.gguf.tokenizer import sampling_settings
from spsbench.settings.cell import WARP
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec
from spsbench.settings.processors import IN_CONFIGS
from spsbench.settings.thoughts import is_mark, without_thinking

RENDERED_LIMIT = 4 << 20  # characters of one rendered chat

_CPU_SECONDS = 5  # processor time for one chat: what other work there is takes none of it

# One task gives one text, whenever and wherever it is rendered: the clock is the task's, and what
# jinja draws (`random`, `lipsum`) has a fixed seed.
_child = Child("""
import random
from datetime import datetime
from transformers.utils import chat_template_utils
from transformers.utils.chat_template_utils import render_jinja_template
render_jinja_template(conversations=[[]], chat_template="")  # what it imports late
class Clock(datetime):
    time = None
    @classmethod
    def now(cls, tz=None):
        return datetime.now(tz) if cls.time is None else cls.time
chat_template_utils.datetime = Clock
def answer(task):
    Clock.time = task["clock"] and datetime.fromisoformat(task["clock"])
    random.seed(0)
    texts, _ = render_jinja_template(
        conversations=[task["messages"]], chat_template=task["template"],
        add_generation_prompt=task["open"], **task["names"])
    return {"text": texts[0]} if len(texts[0]) <= task["limit"] else {"error": "too much text"}
""")

_FILES = ("chat_template.jinja", "tokenizer_config.json")  # those that tokenizers read
GENERATION = "generation_config.json"
LIMIT = 1 << 20  # bytes of the file


def has_template(ref: ModelSpec, access: Access) -> bool:
    """Return whether the tokenizer of a model brings a chat template; a served model's never does.

    Small files tell, fetched from the hub or found in its cache, or a GGUF file's header; False
    where none is found. SpsError: one cannot be read.
    """
    path = expand_path(ref.id)
    if ref.served:
        return False
    if not ref.random and named_gguf(ref.id) and path.is_file():
        return bool(read_header(path).values.get("tokenizer.chat_template"))
    return any(
        file.suffix == ".jinja" or read_object(file, TOKENIZER_LIMIT).get("chat_template")
        for file in fetch_files(ref, _FILES, access)
    )


def own_sampling(ref: ModelSpec, access: Access) -> dict[str, Any]:
    """Return option -> value of the sampling in a model's generation config, or its GGUF file.

    Temperature, top-k, top-p and min-p are as there, penalties only where they have an effect. If
    the file says not to sample: penalties and temperature 0. {}: no such file. DataError: damaged.
    """
    path = expand_path(ref.id)
    files = fetch_files(ref, (GENERATION,), access)
    values = read_object(files[0], LIMIT) if files else {}
    if not (ref.random or ref.served) and named_gguf(ref.id) and path.is_file():
        values = sampling_settings(read_header(path))
    sampling = {
        name: values[key]
        for key, name in IN_CONFIGS.items()
        if values.get(key) not in (None, *NEUTRAL[key])
    }
    if values.get("do_sample") is False:
        return sampling | {"temperature": 0.0}
    return {name: values[name] for name in WARP if values.get(name) is not None} | sampling


def fetch_files(ref: ModelSpec, names: Sequence[str], access: Access) -> list[Path]:
    """Return those of a model's small files `names` that exist; [] for GGUF and random weights.

    [] also for a served model. Files of a model at the hub are fetched or found in the cache.
    """
    path = expand_path(ref.id)
    if ref.random or ref.served or (named_gguf(ref.id) and path.is_file()):
        return []
    if is_bundled_name(ref.id) or path.is_dir():
        folder = locate(ref, access)
        return [folder / name for name in names if (folder / name).is_file()]
    return _at_hub(ref, names, access.offline)


def _at_hub(ref: ModelSpec, names: Sequence[str], offline: bool) -> list[Path]:
    """Return the paths of those of `names` that the hub, or offline its cache, gives; no errors."""
    from huggingface_hub import hf_hub_download

    files = []
    for name in names:
        with suppress(Exception):  # what is missing there raises kinds of several packages
            path = hf_hub_download(ref.id, name, revision=ref.revision, local_files_only=offline)
            files.append(Path(path))
    return files


class ChatPiece(NamedTuple):
    """A piece of a rendered chat."""

    text: str
    plain: bool  # words of the user that look like a control token


def special_tokens(tokenizer: Any) -> dict[str, int]:
    """Return name -> id of the tokens that have no text; none of a tokenizer that is not here."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return {token.content: index for index, token in added.items() if token.special}


def render_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, object]],
    instead: str,
    clock: datetime | None = None,
    tools: Sequence[Any] = (),
    *,
    opens_answer: bool = True,
) -> list[ChatPiece]:
    """Render a chat by the tokenizer's template, cut where messages name a special token.

    Such a name is a `plain` piece of its own; no piece is empty. Marks of thoughts in the model's
    own messages stay as they are: templates look for them. The template is given `clock` as the
    time, None for now, and `tools`, schemas of functions; with `opens_answer` the text ends where
    an answer begins. ValueError: no template. DataError, with `instead` as advice: it fails, or
    lacks words of a message.
    """
    marks = {f"\ue000{secrets.token_hex(8)}\ue001": x for x in special_tokens(tokenizer) if x}
    visible = {mark: control for mark, control in marks.items() if not is_mark(control)}
    marked = [
        {
            key: _mark(value, visible if message.get("role") == "assistant" else marks)
            for key, value in message.items()
        }
        for message in messages
    ]
    names = {k: v for k, v in tokenizer.special_tokens_map.items() if isinstance(v, str)}
    task = {
        "template": tokenizer.get_chat_template(),
        "names": names | ({"tools": list(tools)} if tools else {}),
        "limit": RENDERED_LIMIT,
        "open": opens_answer,
        "clock": clock and clock.isoformat(),
    }
    text = _with_all_words(task, marked, instead)
    spans = []
    while hits := [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]:
        at, mark = min(hits)
        spans += [ChatPiece(text[:at], False), ChatPiece(marks[mark], True)]
        text = text[at + len(mark) :]
    return [span for span in (*spans, ChatPiece(text, False)) if span.text]


def _with_all_words(task: Mapping[str, Any], messages: list[Any], instead: str) -> str:
    """Return the text of a chat with all its words; DataError: the template fails or lacks some.

    The template is given each content as text, then as a list of parts; if both fail, the first
    failure is raised, with `instead` as advice. `task` is that of `_run` without `messages`.
    """
    parts = [
        {**m, "content": [{"type": "text", "text": m["content"]}]} if m.get("content") else m
        for m in messages
    ]
    faults = []
    for chat in (messages, parts):
        try:
            text = _run({**task, "messages": chat}, instead)
        except DataError as error:
            faults.append(error)
            continue
        if (absent := _absent_message(text, messages)) is None:
            return text
        faults.append(
            DataError(
                f"message {absent} of the chat is not in what the template writes (tokenizer): "
                f"expected all its words. {instead}"
            )
        )
    raise faults[0]


def _absent_message(text: str, messages: list[Any]) -> int | None:
    """Return the number, from 1, of the first message whose words a rendered chat lacks, or None.

    White space and thoughts of earlier answers may be missing; words may be escaped as in JSON.
    """
    squeezed, at = "".join(text.split()), 0
    for number, message in enumerate(messages, 1):
        content = message.get("content")
        content = content if isinstance(content, str) else ""
        if message.get("role") == "assistant":
            content = without_thinking(content)
        escaped = (json.dumps(content, ensure_ascii=ascii)[1:-1] for ascii in (True, False))
        forms = ["".join(form.split()) for form in (content, *escaped)]
        places = [(place, form) for form in forms if (place := squeezed.find(form, at)) >= 0]
        if not places and not any(form in squeezed for form in forms):
            return number
        at = max((place + len(form) for place, form in places[:1]), default=at)
    return None


def _mark(value: object, marks: Mapping[str, str]) -> object:
    """Return a message's value with the tokens in its texts replaced: `marks` is mark -> token."""
    if isinstance(value, list):
        return [_mark(part, marks) for part in value]
    if isinstance(value, Mapping):
        return {key: _mark(part, marks) for key, part in value.items()}
    if isinstance(value, str):
        for mark, control in sorted(marks.items(), key=lambda pair: -len(pair[1])):
            value = value.replace(control, mark)
    return value


def _run(task: Mapping[str, Any], instead: str) -> str:
    """Return a chat as a child process renders `task`, in 5 seconds; DataError, with `instead`."""
    answer = _child.ask(task, _CPU_SECONDS, "filling the chat template, in a process of its own")
    if "text" in answer:
        return str(answer["text"])
    why = answer.get("error", "it gave no text")
    raise DataError(f"the chat template fails (tokenizer): {why}. {instead}")
