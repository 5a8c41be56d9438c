"""Chats of the stub server with thoughts, calls of tools and streams, in the shapes of engines."""

import json
import tomllib
from pathlib import Path
from typing import Any

DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SHAPES, FAULTS, CALLS = DATA["shapes"], DATA["faults"], DATA["calls"]


def agent(stub: Any, shape: str, fault: str | None = None) -> Any:
    """A stub's `trouble` that answers chats letter by letter, each a token."""
    form = SHAPES[shape]

    def answer(number: int, http: Any) -> bool:
        body = stub.asked[number - 1]
        if http.path != "/v1/chat/completions":
            return False
        prompt, streamed = body["messages"][-1]["content"], body.get("stream", False)
        choice = body.get("tool_choice", "")
        free = (name for name, word in DATA["words"].items() if word in prompt and choice)
        name = choice["function"]["name"] if isinstance(choice, dict) else next(free, "")
        planted = fault if streamed or fault in ("text of the call", "broken arguments") else None
        words = json.dumps(CALLS[name], ensure_ascii=False) if name else f"Grüße 🙂: {prompt}"
        cut = {"broken arguments": slice(-1), "first token of arguments": slice(1, None)}
        words = words[cut.get(planted, slice(None))] if name else words
        letters = [("tool_calls" if name else "content", letter) for letter in words]
        thoughts = [(form["thoughts"], letter) for letter in "So."] if "thoughts" in form else []
        if planted == "thoughts":
            thoughts[-1] = ("content", ".")
        tokens, n = [*thoughts, *letters], body["max_tokens"]
        ends = ["length" if len(tokens) > n else "tool_calls" if name else "stop", "length", "stop"]
        finish = ends[1 + (ends[0] == "length")] if planted == "finish" else ends[0]
        del tokens[n:]

        def part(first: int, last: int, key: str) -> dict[str, Any]:
            texts: dict[str, Any] = {}
            for kind, letter in tokens[first:last]:
                texts[kind] = texts.get(kind, "") + letter
            if planted == "half a character" and "content" in texts:
                texts["content"] = texts["content"].replace("ü", "\ufffd\ufffd")
            if "tool_calls" in texts:
                begins = all(kind != "tool_calls" for kind, _ in tokens[:first])
                function = {"arguments": texts["tool_calls"]} | ({"name": name} if begins else {})
                texts["tool_calls"] = [{"index": 0, "function": function}]
                if planted == "text of the call":
                    texts["content"] = f"<tool_call>{name}"
            ids = [ord(letter) for _, letter in tokens[first:last]]
            end = finish if last >= len(tokens) else None
            more = {form["ids"]: ids} if "ids" in form else {}
            return {"index": 0, key: texts, "finish_reason": end, **more}

        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(tokens)}
        usage["completion_tokens"] += planted == "usage"
        if not streamed:
            http.send({"choices": [part(0, len(tokens), "message")], "usage": usage})
            return True
        step = len(tokens) if form.get("at_once") else 3
        spans = [(i, min(i + step, len(tokens))) for i in range(0, len(tokens), step)]
        events = [{"choices": [part(*span, "delta")]} for span in spans]
        http.stream([*events, {"choices": [], "usage": usage}])
        return True

    return answer
