"""Chat templates: programs that come with a model, run in a child with limits."""

import json
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from spsbench.errors import DataError

RENDERED_LIMIT = 4 << 20  # characters of one rendered chat
SECONDS = 120.0  # of the child altogether; its start alone takes many on a busy machine
_CPU_SECONDS = 5  # of the template itself
_MEMORY = 512 << 20  # bytes more than the child needs to start

# The child imports first and then takes its limits, so that they bind the template only.
_CHILD = """
import json, sys
task = json.load(sys.stdin)
sys.path[:] = task["path"]
import resource
from transformers.utils.chat_template_utils import render_jinja_template
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + task["memory"],) * 2)
spent = resource.getrusage(resource.RUSAGE_SELF)
cpu = int(spent.ru_utime + spent.ru_stime) + task["cpu"]
resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
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
json.dump(answer, sys.stdout)
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


def _run(template: str, messages: list[dict[str, object]], names: Mapping[str, str]) -> str:
    task: dict[str, Any] = {
        "path": [entry for entry in sys.path if entry],
        "template": template,
        "messages": messages,
        "names": dict(names),
        "limit": RENDERED_LIMIT,
        "memory": _MEMORY,
        "cpu": _CPU_SECONDS,
    }
    try:
        child = subprocess.run(
            [sys.executable, "-I", "-c", _CHILD],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
        )
        answer = json.loads(child.stdout) if child.returncode == 0 else {}
    except subprocess.TimeoutExpired:
        answer = {}
    except ValueError as error:
        raise _bad(f"it printed what is no answer ({error})") from error
    if "text" in answer:
        return str(answer["text"])
    raise _bad(str(answer.get("error", "it runs too long")))


def _bad(why: str) -> DataError:
    return DataError(f"the chat template fails (tokenizer): {why}. Give the prompt without --chat")
