"""Chats of the stub server with thoughts, calls of tools and streams, in the shapes of engines."""

import json
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "vllm": {"ids": "token_ids", "thoughts": "reasoning_content"},
    "vllm 0.33": {"ids": "token_ids", "thoughts": "reasoning", "at_once": True},
    "sglang": {"thoughts": "reasoning_content"},
    "llama-server": {"ids": "tokens"},
    "openai": {"at_once": True},
}
FAULTS = {  # planted fault -> part that sees it, and words of the line that names it
    "first token of arguments": ("tools", "arguments lack their beginning"),
    "half a character": ("stream", "a character of several bytes is split"),
    "finish": ("stream", "finish reason"),
    "text of the call": ("tools", "text of a call inside the answer"),
    "thoughts": ("stream", "thoughts end elsewhere"),
    "usage": ("stream", "tokens counted"),
    "broken arguments": ("tools", "arguments '"),
}
CALLS = {
    "get_weather": {"city": "Zürich", "unit": "celsius"},
    "search": {"query": "投機的サンプリング", "limit": 5},
    "add": {"a": 17.5, "b": 24},
}
WORDS = ("weather", "articles", "Add")  # in free requests that need a tool


def agent(stub: Any, shape: str, fault: str | None = None) -> Any:
    """A stub's `trouble` that answers chats token by token, a token being a letter."""
    form = SHAPES[shape]

    def answer(number: int, http: Any) -> bool:
        body = stub.asked[number - 1]
        if http.path != "/v1/chat/completions":
            return False
        prompt, streamed = body["messages"][-1]["content"], body.get("stream", False)
        choice = body.get("tool_choice", "")
        named = choice["function"]["name"] if isinstance(choice, dict) else ""
        free = (name for name, word in zip(CALLS, WORDS, strict=True) if word in prompt)
        name = named or (next(free, "") if choice else "")
        planted = fault if streamed or fault in ("text of the call", "broken arguments") else None
        words = json.dumps(CALLS[name], ensure_ascii=False) if name else f"Grüße 🙂: {prompt}"
        kind = "tool_calls" if name else "content"
        letters = [(kind, letter) for letter in words]
        if planted == "broken arguments" and name:
            letters.pop()
        if planted == "first token of arguments" and name:
            letters = letters[1:]
        thoughts = [(form["thoughts"], letter) for letter in "So."] if "thoughts" in form else []
        if planted == "thoughts" and thoughts:
            thoughts[-1] = ("content", ".")
        tokens = [*thoughts, *letters]
        n = body["max_tokens"]
        finish = "length" if len(tokens) > n else "tool_calls" if name else "stop"
        if planted == "finish":
            finish = "stop" if finish == "length" else "length"
        del tokens[n:]

        def delta(part: list[tuple[str, str]], first: bool) -> dict[str, Any]:
            texts: dict[str, Any] = {}
            for key, letter in part:
                texts[key] = texts.get(key, "") + letter
            if planted == "half a character" and "ü" in texts.get("content", ""):
                texts["content"] = texts["content"].replace("ü", "\ufffd\ufffd")
            if "tool_calls" in texts:
                head = {"id": "1", "type": "function"} if first else {}
                function = {"arguments": texts["tool_calls"]} | ({"name": name} if first else {})
                texts["tool_calls"] = [{"index": 0, **head, "function": function}]
                if planted == "text of the call":
                    texts["content"] = f"<tool_call>{name}"
            return texts

        def choice_of(first: int, last: int, key: str) -> dict[str, Any]:
            part = tokens[first:last]
            begins = all(k != "tool_calls" for k, _ in tokens[:first])
            ids = {form["ids"]: [ord(letter) for _, letter in part]} if "ids" in form else {}
            end = finish if last >= len(tokens) else None
            return {"index": 0, key: delta(part, begins), "finish_reason": end, **ids}

        count = len(tokens) + (planted == "usage")
        usage = {"usage": {"prompt_tokens": len(prompt), "completion_tokens": count}}
        if not streamed:
            http.send({"choices": [choice_of(0, len(tokens), "message")], **usage})
            return True
        step = len(tokens) if form.get("at_once") else 3
        spans = [(i, min(i + step, len(tokens))) for i in range(0, len(tokens), step)]
        events = [{"choices": [choice_of(*span, "delta")]} for span in spans]
        http.stream([*events, {"choices": [], **usage}])
        return True

    return answer
