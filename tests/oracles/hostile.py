"""Answers of every schema, and a generator of what a server could send in their place.

Each of the valid answers holds every field that the client reads. A hostile one has one node of it
replaced by a value of another kind, or left out; or is no such JSON at all.
"""

import json
from collections.abc import Iterator
from typing import Any

from spsbench.errors import Exit

VALUES = {  # as JSON is written
    "null": "null",
    "text": '"abc"',
    "no text": '""',
    "true": "true",
    "list": "[5]",
    "list of null": "[null]",
    "no list": "[]",
    "object": '{"a": 1}',
    "no object": "{}",
    "-1": "-1",
    "half": "0.5",
    "2^70": str(2**70),
    "1e9": "1000000000",
    "400 digits": "9" * 400,
    "NaN": "NaN",
    "1e999": "1e999",
    "-1e999": "-1e999",
    "lone surrogate": r'"\ud800"',
    "control characters": json.dumps("\x1b]0;x\x07\u202e\x00"),
    "nested": "[" * 900 + "]" * 900,
    "nested objects": '{"a":' * 900 + "1" + "}" * 900,
    "long": '"' + "x" * 20_000 + '"',
    "histogram": '{"999999999": 1}',
    "long list": json.dumps([1] * 5_000),
}
HOLE = "@hole@"

LOGPROBS = {
    "tokens": ["token_id:1", "token_id:2"],
    "token_logprobs": [-1.0, -0.5],
    "top_logprobs": [{"token_id:1": -1.0}, {"token_id:2": -0.5}],
}
CONTENT = [
    {"token": " a", "logprob": -1.0, "id": 1, "top_logprobs": [{"token": " a", "logprob": -1.0}]},
    {"token": " b", "logprob": -0.5, "id": 2, "top_logprobs": [{"token": " b", "logprob": -0.5}]},
]
SPECULATIVE = {
    "num_spec_steps": 1,
    "num_draft_tokens": 3,
    "num_accepted_draft_tokens": 1,
    "per_step_accepted": [1],
    "per_step_drafted": [3],
    "acceptance_histogram": {"1": 1},
}
USAGE = {
    "prompt_tokens": 3,
    "completion_tokens": 2,
    "completion_tokens_details": {"reasoning_tokens": 1},
}
ENDED = {"finish_reason": "stop", "stop_reason": None}
ANSWERS: dict[str, Any] = {
    "completions": {
        "choices": [
            {
                "text": " a b",
                "token_ids": [1, 2],
                "prompt_token_ids": [1, 2, 3],
                "logprobs": LOGPROBS,
                **ENDED,
            }
        ],
        "usage": USAGE,
        "metrics": {"speculative_decoding": SPECULATIVE},
    },
    "chat": {
        "choices": [
            {
                "message": {
                    "content": " b",
                    "reasoning_content": " a",
                    "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
                },
                "logprobs": {"content": CONTENT},
                **ENDED,
            }
        ],
        "usage": USAGE,
        "timings": {"draft_n": 3, "draft_n_accepted": 1, "predicted_n": 2},
    },
    "generate": {
        "text": " a b",
        "output_ids": [1, 2],
        "meta_info": {
            "finish_reason": {"type": "stop", "matched": "x"},
            "prompt_tokens": 3,
            "completion_tokens": 2,
            "output_token_logprobs": [[-1.0, 1, None], [-0.5, 2, None]],
            "output_top_logprobs": [[[-1.0, 1, None]], [[-0.5, 2, None]]],
            "spec_verify_ct": 1,
            "spec_accept_token_num": 1,
            "spec_draft_token_num": 3,
            "spec_accept_histogram": [0, 1],
        },
    },
}
STREAMS: dict[str, list[Any]] = {
    "completions stream": [
        {"choices": [{"text": " a", "token_ids": [1], "finish_reason": None}]},
        {"choices": [{"text": " b", "token_ids": [2], **ENDED}]},
        {"choices": [], "usage": USAGE, "metrics": {"speculative_decoding": SPECULATIVE}},
    ],
    "chat stream": [
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"reasoning": " a"}}]},
        {"choices": [{"delta": {"content": " b"}, **ENDED}]},
        {"choices": [], "usage": USAGE},
    ],
    "generate stream": [
        {"text": " a", "output_ids": [1], "meta_info": {"finish_reason": None}},
        ANSWERS["generate"],
    ],
}
PAGES: dict[str, Any] = {
    "/v1/models": {"data": [{"id": "m", "owned_by": "vllm", "permissions": []}]},
    "/version": {"version": "0.32.0"},
    "/server_info": {"version": "0.5", "disaggregation_mode": "null"},
    "/props": {"default_generation_settings": {}, "build_info": "b1"},
}
BODIES: dict[str, bytes] = {
    "nothing": b"",
    "null": b"null",
    "number": b"7",
    "a list": b"[]",
    "text": b'"abc"',
    "html": b"<html>busy</html>",
    "nested": b"[" * 100_000,
    "nested and whole": b"[" * 100_000 + b"]" * 100_000,
    "nested objects": b'{"choices":' * 100_000,
    "half": b'{"choices": [{"text": "a',
    "other bytes": b"\xff\xfe\x00\xd8",
    "utf-16": '{"choices": []}'.encode("utf-16"),
    "digits": b'{"choices": ' + b"9" * 5000 + b"}",
    "twice": b'{"choices": []}{"choices": []}',
    "nul": b"\x00" * 100,
    "error of anything": b'{"error": [[{"message": 5}]]}',
    "nested error": b'{"error": ' + b"[" * 900 + b"]" * 900 + b"}",
    "surrogate": b'{"error": "\\ud800"}',
}


def holes(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """A JSON value with a hole at each node, the root first, and without each node below it."""
    yield path, HOLE
    items: Any = enumerate(value) if isinstance(value, list) else ()
    for name, item in value.items() if isinstance(value, dict) else items:
        at = f"{path}.{name}"
        for below, changed in holes(item, at):
            if isinstance(value, dict):
                yield below, value | {name: changed}
            else:
                yield below, [*value[:name], changed, *value[name + 1 :]]
        if isinstance(value, dict):
            yield f"{at}: gone", {other: value[other] for other in value if other != name}
        else:
            yield f"{at}: gone", value[:name] + value[name + 1 :]


def written(value: Any) -> bytes:
    return json.dumps(value).encode()


def event(content: bytes) -> bytes:
    """A line of a stream."""
    return b"data: " + content + b"\n\n"


def changes(value: Any) -> Iterator[tuple[str, bytes]]:
    """Every hostile form of a JSON value, by name."""
    for place, changed in holes(value):
        text = json.dumps(changed)
        if HOLE not in text:
            yield place, text.encode()
        else:
            for name, by in VALUES.items():
                yield f"{place}: {name}", text.replace(f'"{HOLE}"', by).encode()


def answers() -> Iterator[tuple[str, str, bytes]]:
    """Kind of the answer, name of the change, bytes; of all answers and streams."""
    for kind, value in ANSWERS.items():
        yield from ((kind, name, content) for name, content in changes(value))
        yield from ((kind, name, content) for name, content in BODIES.items())
    for kind, events in STREAMS.items():
        lines = [event(written(each)) for each in events]
        for place, each in enumerate(events):
            for name, content in changes(each):
                changed = [*lines[:place], event(content), *lines[place + 1 :]]
                yield kind, f"event {place}: {name}", b"".join(changed) + event(b"[DONE]")
        for name, content in BODIES.items():
            yield kind, name, event(content) + event(b"[DONE]")
            yield kind, f"{name}, without an end", b"".join(lines[:1]) + event(content)


def pages() -> Iterator[tuple[str, str, bytes]]:
    """Path, name of the change, bytes; of all pages."""
    for path, value in PAGES.items():
        yield from ((path, name, content) for name, content in changes(value))
        yield from ((path, name, content) for name, content in BODIES.items())
    for name, content in BODIES.items():
        yield "/metrics", name, content
    for value in ("1e308", "nan", "-1", "1e999", "9" * 400, "x", "1e15"):
        counters = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
        lines = [f"vllm:spec_decode_{counter}_total {value}" for counter in counters]
        lines += [f'vllm:spec_decode_num_accepted_tokens_per_pos{{position="{"7" * 5000}"}} 1']
        yield "/metrics", value, "\n".join(lines).encode()


KEY = "sk-Secret-of-mine-42"


def sending(content, *, stream, first):
    """A stub that answers whole requests or streams with `content`, from the `first` on."""
    seen = []

    def trouble(number, http):
        if http.streaming is not stream:
            return False
        seen.append(number)
        if len(seen) <= first:
            return False
        return http.send(content) or True

    return trouble


def ended_well(ran, where, folder):
    """A code of this command, one line of error, and the key nowhere."""
    assert ran.code in (*map(int, set(Exit) - {Exit.INTERNAL}),), (where, ran)
    assert "Traceback" not in ran.err, where
    assert KEY not in ran.out + ran.err, where
    assert all(len(line) < 2000 for line in ran.err.splitlines()), where
    for path in folder.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), (where, path)
