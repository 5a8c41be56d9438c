"""Chat templates: programs that come with a model, run in a child with limits."""

import atexit
import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spsbench.errors import DataError

RENDERED_LIMIT = 4 << 20  # characters of one rendered chat
SECONDS = 120.0  # for one chat; the child's start alone takes many on a busy machine
_CPU_SECONDS = 5  # of the template itself
_MEMORY = 512 << 20  # bytes more than the child needs to start

# The child imports first and then takes its limits, so that they bind the template only.
_CHILD = """
import json, sys
path = json.loads(sys.stdin.readline())
sys.path[:] = path["path"]
import resource
from transformers.utils.chat_template_utils import render_jinja_template
render_jinja_template(conversations=[[]], chat_template="")  # what it imports late
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + path["memory"],) * 2)
for line in sys.stdin:
    task = json.loads(line)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    cpu = int(spent.ru_utime + spent.ru_stime) + task["cpu"]
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, resource.getrlimit(resource.RLIMIT_CPU)[1]))
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


class Span(NamedTuple):
    """A stretch of a rendered chat."""

    text: str
    plain: bool  # words of the user that look like a control token


def render(
    template: str,
    messages: Sequence[Mapping[str, object]],
    names: Mapping[str, str],
    controls: Sequence[str],
) -> list[Span]:
    """The chat as text, cut where the messages contain one of `controls`.

    `names` are the special tokens a template may write, such as `bos_token`.

    Raises:
        DataError: the template fails, or runs too long, too large or too wide.
    """
    marks = {f"\ue000{secrets.token_hex(8)}\ue001": control for control in controls if control}
    marked = [{key: _mark(value, marks) for key, value in message.items()} for message in messages]
    rest = _run(template, marked, names)
    spans = []
    while hits := [(at, mark) for mark in marks if (at := rest.find(mark)) >= 0]:
        at, mark = min(hits)
        spans += [Span(rest[:at], False), Span(marks[mark], True)]
        rest = rest[at + len(mark) :]
    return [span for span in (*spans, Span(rest, False)) if span.text]


def _mark(text: object, marks: Mapping[str, str]) -> object:
    if not isinstance(text, str):
        return text
    for mark, control in sorted(marks.items(), key=lambda pair: -len(pair[1])):
        text = text.replace(control, mark)
    return text


class _Child:
    """The process that runs templates; it is kept, since its start takes seconds."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._owner = os.getpid()

    def ask(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Its answer; empty where it did not live to give one."""
        with self._lock:
            if self._owner != os.getpid():  # a fork: the process is its parent's
                self._process, self._owner = None, os.getpid()
            process = self._process or self._start()
            clock = threading.Timer(SECONDS, process.kill)
            clock.start()
            try:
                line = self._exchange(process, json.dumps(task))
            finally:
                clock.cancel()
            if not line.endswith("\n"):
                self._end()
                return {}
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise _bad(f"it printed what is no answer ({error})") from error
        return answer if isinstance(answer, dict) else {}

    def close(self) -> None:
        """End it; the next question starts another one."""
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
        known = {"path": [entry for entry in sys.path if entry], "memory": _MEMORY}
        self._process = process
        self._write(process, json.dumps(known))
        return process

    def _exchange(self, process: "subprocess.Popen[str]", line: str) -> str:
        self._write(process, line)
        return process.stdout.readline() if process.stdout is not None else ""

    def _write(self, process: "subprocess.Popen[str]", line: str) -> None:
        if process.stdin is not None:
            with contextlib.suppress(OSError):  # it is dead: its answer is missing too
                process.stdin.write(line + "\n")
                process.stdin.flush()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        process.wait()


_child = _Child()
atexit.register(_child.close)


def _run(template: str, messages: list[dict[str, object]], names: Mapping[str, str]) -> str:
    answer = _child.ask(
        {
            "template": template,
            "messages": messages,
            "names": dict(names),
            "limit": RENDERED_LIMIT,
            "cpu": _CPU_SECONDS,
        }
    )
    if "text" in answer:
        return str(answer["text"])
    raise _bad(str(answer.get("error", "it runs too long")))


def _bad(why: str) -> DataError:
    return DataError(f"the chat template fails (tokenizer): {why}. Give the prompt without --chat")
