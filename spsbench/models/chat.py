"""Chats: template detection, the model's own sampling options, and template rendering.

A template is a program that comes with the model: it runs in a child process with limits on its
time, memory and output.
"""

import atexit
import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from spsbench.checkpoints.config import expanded, read_object
from spsbench.errors import DataError
from spsbench.messages import announce_if_slow
from spsbench.models.folder import locate, named
from spsbench.models.gguf.header import named_gguf, read_header
from spsbench.settings.cell import WARP
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelSpec

RENDERED_LIMIT = 4 << 20  # characters of one rendered chat

_CPU_SECONDS = 5  # of processor time, for one chat: what other work there is takes none of it

_START_CPU_SECONDS = 120  # of processor time, for the child's imports

_MEMORY = 512 << 20  # bytes more than the child needs to start

# The child imports first and then takes its limits, so that they bind the template only. All of
# them count what the child uses: on a machine where other work keeps it waiting, it may wait.
# One task gives one text, whenever and wherever it is rendered: the clock is the task's, and what
# jinja draws (`random`, `lipsum`) has a fixed seed.
_CHILD = """
import json, random, sys
path = json.loads(sys.stdin.readline())
sys.path[:] = path["path"]
import resource
resource.setrlimit(resource.RLIMIT_CPU, (path["cpu"], resource.getrlimit(resource.RLIMIT_CPU)[1]))
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
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + path["memory"],) * 2)
for line in sys.stdin:
    task = json.loads(line)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(spent.ru_utime + spent.ru_stime) + task["cpu"]
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    Clock.time = task["clock"] and datetime.fromisoformat(task["clock"])
    random.seed(0)
    try:
        done, _ = render_jinja_template(
            conversations=[task["messages"]], chat_template=task["template"],
            add_generation_prompt=True, **task["names"])
        answer = {"text": done[0]} if len(done[0]) <= task["limit"] else {"error": "too much text"}
    except MemoryError:
        answer = {"error": "it needs too much memory"}
    except RecursionError:
        answer = {"error": "it recurses without end"}
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        answer = {"error": lines[0][:300]}
    print(json.dumps(answer), flush=True)
"""

_LIMIT = 200 << 20  # bytes of a tokenizer's configuration

_FILES = ("chat_template.jinja", "tokenizer_config.json")  # those that tokenizers read

GENERATION = "generation_config.json"

LIMIT = 1 << 20  # bytes of the file


def has_template(ref: ModelSpec, access: Access) -> bool:
    """Return whether the tokenizer of a model brings a chat template.

    Of a model at the hub, the small files that would tell are fetched or found in the cache.
    """
    path = expanded(ref.id)
    if ref.served:
        return False
    if not ref.random and named_gguf(ref.id) and path.is_file():
        return bool(read_header(path).values.get("tokenizer.chat_template"))
    return any(map(_tells, files_of(ref, _FILES, access)))


def template_lookup(access: Access) -> Callable[[ModelSpec], bool]:
    """Return `has_template` under this access, with its answers cached."""
    return cache(partial(has_template, access=access))


def own_sampling(ref: ModelSpec, access: Access) -> dict[str, Any]:
    """Return the warp options in a model's generation config, as the file has them."""
    files = files_of(ref, (GENERATION,), access)
    values = read_object(files[0], LIMIT) if files else {}
    if values.get("do_sample") is False:
        return {"temperature": 0.0}
    return {name: values[name] for name in WARP if values.get(name) is not None}


def sampling_lookup(access: Access) -> Callable[[ModelSpec], dict[str, Any]]:
    """Return `own_sampling` under this access, reading each model's file once."""
    return cache(partial(own_sampling, access=access))


def files_of(ref: ModelSpec, names: Sequence[str], access: Access) -> list[Path]:
    """Return some small files of a model, those that exist; none for GGUF and random weights.

    Files of a model at the hub are fetched or found in the cache.
    """
    path = expanded(ref.id)
    if ref.random or ref.served or (named_gguf(ref.id) and path.is_file()):
        return []
    if named(ref.id) or path.is_dir():
        folder = locate(ref, access)
        return [folder / name for name in names if (folder / name).is_file()]
    return _at_hub(ref, names, access.offline)


def _tells(path: Path) -> bool:
    return path.suffix == ".jinja" or bool(read_object(path, _LIMIT).get("chat_template"))


def _at_hub(ref: ModelSpec, names: Sequence[str], offline: bool) -> list[Path]:
    from huggingface_hub import hf_hub_download

    files = []
    for name in names:
        try:
            files.append(
                Path(hf_hub_download(ref.id, name, revision=ref.revision, local_files_only=offline))
            )
        except Exception:  # what is missing there raises kinds of several packages
            continue
    return files


class Span(NamedTuple):
    """A piece of a rendered chat."""

    text: str
    plain: bool  # words of the user that look like a control token


def render(
    template: str,
    messages: Sequence[Mapping[str, object]],
    names: Mapping[str, str],
    controls: Sequence[str],
    instead: str,
    clock: datetime | None = None,
) -> list[Span]:
    """Render the chat to text, cut where the messages contain one of `controls`.

    Args:
        names: the special tokens a template may write, such as `bos_token`.
        instead: what a user can do where the template fails.
        clock: the time given to the template; None: now.
    """
    marks = {f"\ue000{secrets.token_hex(8)}\ue001": control for control in controls if control}
    marked = [{key: _mark(value, marks) for key, value in message.items()} for message in messages]
    text = _run(template, marked, names, instead, clock)
    spans = []
    while hits := [(at, mark) for mark in marks if (at := text.find(mark)) >= 0]:
        at, mark = min(hits)
        spans += [Span(text[:at], False), Span(marks[mark], True)]
        text = text[at + len(mark) :]
    return [span for span in (*spans, Span(text, False)) if span.text]


def _mark(value: object, marks: Mapping[str, str]) -> object:
    """Return a value of a message with marks for the control tokens in its texts."""
    if isinstance(value, list):
        return [_mark(part, marks) for part in value]
    if isinstance(value, Mapping):
        return {key: _mark(part, marks) for key, part in value.items()}
    if isinstance(value, str):
        for mark, control in sorted(marks.items(), key=lambda pair: -len(pair[1])):
            value = value.replace(control, mark)
    return value


class _Child:
    """A child process that renders templates; it is kept, since its start takes seconds."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def ask(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return the child's answer: `text`, or an `error` in words."""
        with self._lock:
            if self._owner != os.getpid():  # a fork: the process is its parent's
                self._process, self._owner = None, os.getpid()
            process = self._process or self._start()
            with announce_if_slow("filling the chat template, in a process of its own"):
                line = self._exchange(process, json.dumps(task))
            if not line.endswith("\n"):
                code = self._end()
                if code == -signal.SIGXCPU:
                    return {"error": f"it takes more than {task['cpu']} s of processor time"}
                return {"error": f"its process ended without an answer (exit code {code})"}
        try:
            answer = json.loads(line)
        except ValueError as error:
            return {"error": f"it printed what is no answer ({error})"}
        return answer if isinstance(answer, dict) else {"error": "it printed what is no answer"}

    def close(self) -> None:
        """End the child; the next question starts another one."""
        with self._lock:
            if self._owner == os.getpid():
                self._end()

    def _start(self) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )
        limits = {
            "path": [entry for entry in sys.path if entry],
            "memory": _MEMORY,
            "cpu": _START_CPU_SECONDS,
        }
        self._process = process
        self._write(process, json.dumps(limits))
        return process

    def _exchange(self, process: "subprocess.Popen[str]", line: str) -> str:
        self._write(process, line)
        return process.stdout.readline() if process.stdout is not None else ""

    def _write(self, process: "subprocess.Popen[str]", line: str) -> None:
        if process.stdin is not None:
            with contextlib.suppress(OSError):  # it is dead: its answer is missing too
                process.stdin.write(line + "\n")
                process.stdin.flush()

    def _end(self) -> int | None:
        """End the child and return its exit code, also if it was dead already."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        return process.wait()


_child = _Child()
atexit.register(_child.close)


def _run(
    template: str,
    messages: list[dict[str, object]],
    names: Mapping[str, str],
    instead: str,
    clock: datetime | None,
) -> str:
    answer = _child.ask(
        {
            "template": template,
            "messages": messages,
            "names": dict(names),
            "limit": RENDERED_LIMIT,
            "cpu": _CPU_SECONDS,
            "clock": clock and clock.isoformat(),
        }
    )
    if "text" in answer:
        return str(answer["text"])
    why = answer.get("error", "it gave no text")
    raise DataError(f"the chat template fails (tokenizer): {why}. {instead}")
