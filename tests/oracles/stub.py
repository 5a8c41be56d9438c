"""A server over a table of distributions that speculates honestly or with a planted defect.

It speaks OpenAI's schema as vLLM 0.33 extends it and SGLang's /generate. Tokens are the words `w0`,
`w1`, ...; the distribution of the next one depends on the last one alone, so that a round of
speculation is a few look-ups. A model may take the table's place (`Engine`).
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import numpy as np

SIZE, K = 24, 3
DEFECTS = (
    "verifies greedily",
    "argmax drafts judged by a dense law",
    "temperature not applied to the draft",
    "no residual",
    "first token drawn twice",
    "draft laws swapped",
)


def table(seed: int, size: int = SIZE, sharp: float = 2.0) -> np.ndarray:
    """[V, V] logits of the next token after each."""
    return np.random.default_rng(seed).normal(size=(size, size)) * sharp


TARGET = table(0)
DRAFT = 0.4 * TARGET + 0.9 * table(1)


def softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    if temperature == 0:
        return np.eye(logits.shape[-1])[logits.argmax(-1)]
    weights = np.exp((logits - logits.max(-1, keepdims=True)) / temperature)
    return weights / weights.sum(-1, keepdims=True)


def after_cut(law, top_p, top_k):
    """Rows [n, V] after top-k, then top-p."""
    order = np.argsort(-law, kind="stable")
    ranked = np.take_along_axis(law, order, -1)
    ranked[:, top_k or ranked.shape[1] :] = 0
    ranked /= ranked.sum(-1, keepdims=True)
    ranked[ranked.cumsum(-1) - ranked >= top_p] = 0
    np.put_along_axis(law, order, ranked / ranked.sum(-1, keepdims=True), -1)
    return law


@dataclass
class Made:
    """A text, the logits that were stated for it, and its rounds."""

    ids: list[int] = field(default_factory=list)
    logits: list[np.ndarray] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)

    def cut(self, n: int) -> None:
        """Leave `n` tokens, and the rounds that they took."""
        del self.ids[n:], self.logits[n:]
        begun = np.cumsum([0, *(kept + 1 for kept in self.accepted)])
        passes = int((begun < n).sum())
        del self.accepted[passes:], self.drafted[passes:]


def of_table(logits):
    """Score as a table does: (prompt, tokens) -> logits [n, V] at each of the tokens."""
    return lambda prompt, tokens: logits[[prompt[-1] if prompt else 0, *tokens[:-1]]]


@dataclass
class Engine:
    """Generates by speculation with a table [V, V] of logits, or what scores as `of_table` does."""

    target: Any = field(default_factory=lambda: TARGET)
    draft: Any = field(default_factory=lambda: DRAFT)
    defect: str | None = None  # planted
    wait: float = 0.02  # seconds for a second request
    k: int = K  # 0 = plain sampling
    ignores_cuts: bool = False  # top-p and top-k
    penalises: str = "text"  # what a repetition penalty counts; "answer", or "" = nothing
    as_vllm: bool = False  # the prompt's pass has no draft; the last draft may go beyond the end
    actual: float | None = None  # a temperature that is set behind the client's back
    size: int = SIZE
    penalty: float = 1.0  # of repetition, of the request
    slots: dict[int, Any] = field(default_factory=dict)  # draft probs of each running request
    met: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self):
        self.score = self.target if callable(self.target) else of_table(self.target)
        self.guess = self.draft if callable(self.draft) else of_table(self.draft)

    @contextmanager
    def slot(self, request):
        """Take part in a batch; with swapped distributions, wait a little for a second request."""
        with self.met:
            self.slots[request] = None
            self.met.notify_all()
            if self.defect == "draft laws swapped":
                self.met.wait_for(lambda: len(self.slots) > 1, timeout=self.wait)
        try:
            yield
        finally:
            with self.met:
                del self.slots[request]

    def penalised(self, rows, fed, drafts, start):
        """Rows after `fed` and each of the drafts, under the penalty of a text."""
        begin = {"text": 0, "answer": start}.get(self.penalises)
        if self.penalty == 1 or begin is None:
            return rows
        rows = rows.copy()
        for i, row in enumerate(rows):
            for token in {*fed[begin:], *drafts[:i]}:
                row[token] = (
                    row[token] / self.penalty if row[token] > 0 else row[token] * self.penalty
                )
        return rows

    def generate(self, prompt, n, temperature, seed, top_p=1.0, top_k=0, repetition_penalty=1.0):
        self.penalty = repetition_penalty
        rng = np.random.default_rng(seed)
        if self.actual is not None and temperature > 0:
            temperature = self.actual
        made, fed, request = Made(), list(prompt) or [0], object()
        start = len(fed)
        cut = (1.0, 0) if self.ignores_cuts else (top_p, max(top_k, 0))
        with self.slot(request):
            while len(made.ids) < n:
                self.round(made, fed, temperature, rng, n, request, cut, start)
        del made.ids[n:], made.logits[n:]
        return made

    def round(self, made, fed, temperature, rng, n, request, cut, start):
        """Draft, judge, emit; `fed` is the text as the models see it."""
        k = min(self.k, n - len(made.ids) - 1)
        if self.as_vllm:
            k = self.k if made.ids else 0
        drafts, p = [], []
        for _ in range(k):
            logits = self.guess([*fed, *drafts], [0])[0]
            p.append(softmax(logits, temperature))
            drawn_by = p[-1]
            if self.defect == "temperature not applied to the draft" and temperature > 0:
                drawn_by = softmax(logits, 1.0)
            if self.defect == "argmax drafts judged by a dense law":
                drawn_by = np.eye(len(logits))[p[-1].argmax()]
            drafts.append(draw(drawn_by, rng))
        self.slots[request] = p[0] if p else None
        others = [
            law for key, law in list(self.slots.items()) if key != request and law is not None
        ]
        stated = self.score(fed, [*drafts, 0])
        processed = self.penalised(stated, fed, drafts, start)
        q = after_cut(softmax(processed, temperature), *cut)
        if self.defect == "verifies greedily":
            q = np.eye(q.shape[1])[q.argmax(1)]
        for kept, x in enumerate(drafts):
            judged = p[kept]
            if self.defect == "draft laws swapped" and others:
                judged = others[0]
            if rng.random() * judged[x] < q[kept][x]:
                continue
            left = np.maximum(q[kept] - judged, 0)
            if self.defect == "no residual" or left.sum() <= 0:
                left = q[kept]
            new = draw(left / left.sum(), rng)
            break
        else:
            kept, new = k, draw(q[k], rng)
        made.logits += list(stated[: kept + 1])
        made.ids += [*drafts[:kept], new]
        made.accepted.append(kept)
        made.drafted.append(k)
        if self.defect == "first token drawn twice":
            new = draw(q[kept], rng)  # what is fed is another draw than what was printed
        fed += [*drafts[:kept], new]

    def prompt_logits(self, prompt):
        """The logits of each token of a prompt but the first."""
        return list(self.score(prompt[:1], prompt[1:])) if len(prompt) > 1 else []


def draw(law: np.ndarray, rng: Any) -> int:
    return int(min(np.searchsorted(law.cumsum(), rng.random(), side="right"), len(law) - 1))


@dataclass
class Stub:
    """How the server behaves around its engine."""

    engine: Engine = field(default_factory=Engine)
    schema: str = "vllm"  # or "sglang", "llama-server", or "openai": neither ids nor extras
    ends: int | None = None  # token that ends a text
    logprobs: bool = True
    per_request: bool = True  # an answer has its own counts, beside those at /metrics
    most: int = 10  # likeliest tokens that an answer may state
    encode: Callable[[str], list[int]] | None = None
    trouble: Callable[[int, Any], bool] | None = None  # (number of the request, handler) -> done
    second_bos: int | None = None
    pause: float = 0.0  # seconds after each event
    says_more: int = 0  # tokens that it counts beside those it gives
    printed: Callable[[int], str] = lambda i: f" w{i}"  # the text of a token
    second_differs: bool = False  # the second answer to a prompt, as by a wrong prefix cache
    draws_greedy_beside_sampled: bool = False  # in a batch of both
    ends_after: int | None = None  # requests to generate, then the server stops
    undrafted: Callable[[Any], bool] = lambda body: False  # requests that it does not speculate for
    edit: Callable[[Any], None] = lambda choice: None  # what it changes in a choice that it sends
    pages: dict[str, Callable[[Any], None]] = field(default_factory=dict)  # path -> what answers
    model: str = "table"  # its name
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    seen: Counter[Any] = field(default_factory=Counter)  # how often each prompt came
    running: list[float] = field(default_factory=list)  # temperatures of requests at this moment
    texts: list[Made] = field(default_factory=list)  # in the order in which they were made
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ids(self, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            prompt = (
                self.encode(prompt)
                if self.encode
                else [sum(word.encode()) % self.engine.size for word in prompt.split()]
            )
        return [*([] if self.second_bos is None else [self.second_bos]), *map(int, prompt)]

    def generate(self, prompt: Any, n: int, temperature: float, seed: int, cuts: Any) -> Made:
        """A text, with the planted defects of a server around its engine."""
        own = temperature
        with self.lock:
            self.running.append(own)
            self.seen[tuple(prompt)] += 1
            again = self.seen[tuple(prompt)] > 1 and len(prompt) > 100
        if self.draws_greedy_beside_sampled:
            time.sleep(0.05 if temperature else 0.02)  # a batch has all its requests by then
            temperature = 1.0 if temperature or any(self.running) else 0.0
        if self.second_differs and again:
            prompt = [*prompt, 1]
        try:
            return self.engine.generate(prompt, n, temperature, seed, **cuts)
        finally:
            with self.lock:
                self.running.remove(own)

    def printed_stop(self, made: Made, stop: str) -> str:
        """The text up to a stop string, whose tokens `made` then ends with; empty without one."""
        for n in range(1, len(made.ids) + 1):
            text = self.text(made.ids[:n])
            if stop in text:
                made.cut(n)
                return text[: text.index(stop)]
        return ""

    def text(self, ids: list[int]) -> str:
        return "".join(map(self.printed, ids))

    def count(self, made: Made) -> None:
        with self.lock:
            self.texts.append(made)
            self.counts["num_drafts"] += sum(k > 0 for k in made.drafted)
            self.counts["num_draft_tokens"] += sum(made.drafted)
            self.counts["num_accepted_tokens"] += sum(made.accepted)
            for i in range(self.engine.k):
                key = f'num_accepted_tokens_per_pos{{position="{i}"}}'
                self.counts[key] += sum(a > i for a in made.accepted)

    def metrics(self) -> str:
        lines = ["# HELP of the counters"]
        for name, value in self.counts.items():
            bare, brace, labels = name.partition("{")
            lines.append(f"vllm:spec_decode_{bare}_total{brace}{labels} {value}")
        return "\n".join(lines) + "\n"

    def page(self, path: str) -> Any:
        """The value of a page; None if there is none."""
        owners = {"vllm": "vllm", "sglang": "sglang", "llama-server": "llamacpp"}
        pages: dict[tuple[str, str], Any] = {
            ("/version", "vllm"): {"version": "0.33.0"},
            ("/metrics", "vllm"): self.metrics(),
            ("/server_info", "sglang"): {"version": "0.5.23"},
        }
        if path == "/v1/models":
            return {"data": [{"id": self.model, "owned_by": owners.get(self.schema, "someone")}]}
        return pages.get((path, self.schema))


def handler_of(stub: Stub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # events leave when they are made, as engines send them

        def log_message(self, *_: Any) -> None:
            pass

        def send(self, value: Any, status: int = 200, **headers: str) -> None:
            """Send JSON, or bytes and text as they are."""
            text = value if isinstance(value, str | bytes) else json.dumps(value)
            body = text.encode() if isinstance(text, str) else text
            self.send_response(status)
            for name, content in (headers | {"content_length": str(len(body))}).items():
                self.send_header(name.replace("_", "-"), content)
            self.end_headers()
            self.wfile.write(body)

        def stream(self, events: list[Any], pause: float = 0.0) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            for event in [*events, "[DONE]"]:
                text = event if isinstance(event, str) else json.dumps(event)
                self.wfile.write(f"data: {text}\n\n".encode())
                self.wfile.flush()
                time.sleep(pause)
            self.close_connection = True

        def do_GET(self) -> None:
            stub.keys.append(self.headers.get("authorization"))
            if self.path in stub.pages:
                stub.pages[self.path](self)
            elif (page := stub.page(self.path)) is None:
                self.send({"error": "no such page"}, 404)
            else:
                self.send(page)

        def do_POST(self) -> None:
            size = int(self.headers["content-length"])
            body = json.loads(self.rfile.read(size))
            self.streaming = bool(body.get("stream"))
            with stub.lock:
                stub.asked.append(body)
                number = len(stub.asked)
            if stub.ends_after is not None and number > stub.ends_after:
                self.close_connection = True
                return
            if stub.trouble is not None and stub.trouble(number, self):
                return
            answer_sglang(stub, self, body) if self.path == "/generate" else answer_openai(
                stub, self, body
            )

    return Handler


Listed = list[tuple[float, int]]


def rows_of(logits: list[np.ndarray], ids: list[int], top: int) -> list[Listed]:
    """The likeliest tokens at each place, and the emitted one beside them."""
    made = []
    for row, own in zip(logits, ids, strict=True):
        lps = np.log(softmax(row, 1.0))
        best = np.argsort(-lps)[:top].tolist()
        made.append([(float(lps[i]), i) for i in [*best, *([own] if own not in best else [])]])
    return made


def of_token(row: Listed, token: int) -> float:
    return next(lp for lp, i in row if i == token)


def answer_openai(stub: Stub, http: Any, body: dict[str, Any]) -> None:
    if body["model"] != stub.model:
        return http.send({"error": {"message": f"no model {body['model']}"}}, 404)
    chat = "messages" in body
    prompt = stub.ids(body["messages"][-1]["content"] if chat else body["prompt"])
    names = ("top_p", "top_k", "repetition_penalty")
    cuts = {name: body[name] for name in names if name in body}
    seed, temperature = body.get("seed", 0), body["temperature"]
    made = stub.generate(prompt, body["max_tokens"], temperature, seed, cuts)
    texts = {stop: stub.printed_stop(made, stop) for stop in body.get("stop", ())}
    stopped = min(filter(texts.get, texts), key=lambda stop: len(texts[stop]), default=None)
    text, end = stub.text(made.ids), {"finish_reason": "length"}
    if stopped:
        text, end = texts[stopped], {"finish_reason": "stop", "stop_reason": stopped}
    ends = {stub.ends, *body.get("stop_token_ids", ())}
    if last := next((n for n, token in enumerate(made.ids, 1) if token in ends), 0):
        made.cut(last)
        text, end = stub.text(made.ids), {"finish_reason": "stop"}
    if not (plain := stub.undrafted(body)):
        stub.count(made)
    vllm, llama = stub.schema == "vllm", stub.schema == "llama-server"
    top = int(body.get("top_logprobs", 0) if chat else body.get("logprobs", 0))
    if top > (stub.most if stub.logprobs else 0):
        return http.send({"error": {"message": f"at most {stub.most} logprobs, if any"}}, 400)
    rows = rows_of(made.logits, made.ids, top) if top else []

    def named(i: int) -> str:
        by_id = vllm and body.get("return_tokens_as_token_ids")
        return f"token_id:{i}" if by_id else stub.printed(i)

    def entry(i: int, lp: float) -> dict[str, Any]:
        return {"token": named(i), "logprob": lp} | ({"id": i} if llama else {})

    def part(first: int, last: int) -> dict[str, Any]:
        ids, listed = made.ids[first:last], rows[first:last]
        shown = text[slice(*(len(stub.text(made.ids[:n])) for n in (first, last)))]
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        if vllm and body.get("return_token_ids"):
            choice["token_ids"] = ids
        whole = first == 0 and last == len(made.ids)
        choice |= {"message" if whole else "delta": {"content": shown}} if chat else {"text": shown}
        if rows and (chat or llama):
            content = [
                entry(i, of_token(row, i)) | {"top_logprobs": [entry(j, lp) for lp, j in row]}
                for i, row in zip(ids, listed, strict=True)
            ]
            choice["logprobs"] = {"content": content}
        elif rows:
            choice["logprobs"] = {
                "tokens": list(map(named, ids)),
                "token_logprobs": list(map(of_token, listed, ids)),
                "top_logprobs": [{named(j): lp for lp, j in row} for row in listed],
            }
        stub.edit(choice)
        return choice

    steps = list(zip(made.accepted, made.drafted, strict=True))
    if stub.engine.as_vllm:
        steps = [step for step in steps if step[1]]
    answer: dict[str, Any] = {"usage": {"prompt_tokens": len(prompt)}}
    answer["usage"]["completion_tokens"] = len(made.ids) + stub.says_more
    if vllm and stub.engine.k and stub.per_request and not stopped and not plain:
        spec = {
            "num_spec_steps": len(steps),
            "num_accepted_draft_tokens": sum(made.accepted),
            "num_draft_tokens": sum(made.drafted),
            "per_step_accepted": [accepted for accepted, _ in steps],
            "per_step_drafted": [drafted for _, drafted in steps],
        }
        answer["metrics"] = {"speculative_decoding": spec}
    if stub.schema == "sglang" and stub.engine.k and body.get("return_spec_tokens_details"):
        spec = {"spec_verify_ct": len(steps), "spec_num_correct_drafts": sum(made.accepted)}
        spec |= {"spec_num_proposed_drafts": sum(made.drafted)}
        answer["sglext"] = {"spec_tokens_details": spec}
    whole = {"prompt_token_ids": prompt} if vllm and body.get("return_token_ids") else {}
    if body.get("stream"):
        lasts = [min(last, len(made.ids)) for last in np.cumsum([a + 1 for a in made.accepted])]
        parts = [part(*span) for span in pairwise([0, *lasts]) if span[1] > span[0]]
        parts[0] |= whole
        parts[-1] |= end
        events = [*({"choices": [one]} for one in parts), {"choices": [], **answer}]
        return http.stream(events, stub.pause)
    choice = part(0, len(made.ids)) | end | whole
    if body.get("prompt_logprobs") is not None:
        scored = rows_of(stub.engine.prompt_logits(prompt), prompt[1:], body["prompt_logprobs"])
        shown = [{str(j): {"logprob": lp, "rank": 1} for lp, j in row} for row in scored]
        choice["prompt_logprobs"] = [None, *shown]
    return http.send({"choices": [choice], **answer})


def answer_sglang(stub: Stub, http: Any, body: dict[str, Any]) -> None:
    asked = body["sampling_params"]
    prompt = body.get("input_ids") or stub.ids(body["text"])
    seed, n = asked.get("sampling_seed", 0), asked["max_new_tokens"]
    cuts = {name: asked[name] for name in ("top_p", "top_k")}
    made = stub.engine.generate(prompt, n, asked["temperature"], seed, **cuts)

    def rows(logits: Any, ids: list[int]) -> tuple[list[Any], list[Any]]:
        listed = rows_of(logits, ids, body["top_logprobs_num"])
        own = [(of_token(row, i), i, None) for i, row in zip(ids, listed, strict=True)]
        return own, [[(lp, j, None) for lp, j in row] for row in listed]

    def event(last: int, rounds: int) -> dict[str, Any]:
        ids = made.ids[:last]
        meta: dict[str, Any] = {
            "finish_reason": {"type": "length"} if last == len(made.ids) else None,
            "prompt_tokens": len(prompt),
            "completion_tokens": last,
        }
        if stub.engine.k:
            counts = [made.accepted[:rounds].count(a) for a in range(stub.engine.k + 1)]
            meta |= {"spec_verify_ct": rounds, "spec_accept_histogram": counts}
            meta |= {"spec_accept_token_num": sum(made.accepted[:rounds])}
            meta |= {"spec_draft_token_num": sum(made.drafted[:rounds])}
        if body.get("return_logprob") and stub.logprobs:
            listed = rows(made.logits[:last], ids)
            meta |= zip(("output_token_logprobs", "output_top_logprobs"), listed, strict=True)
        if body.get("logprob_start_len") == 0:
            own, tops = rows(stub.engine.prompt_logits(prompt), prompt[1:])
            meta["input_token_logprobs"] = [(None, prompt[0], None), *own]
            meta["input_top_logprobs"] = [None, *tops]
        return {"text": stub.text(ids), "output_ids": ids, "meta_info": meta}

    if not body.get("stream"):
        return http.send(event(len(made.ids), len(made.accepted)))
    lasts = np.cumsum([a + 1 for a in made.accepted]).tolist()
    return http.stream([event(last, i + 1) for i, last in enumerate(lasts)])


class Patient(ThreadingHTTPServer):
    """A server whose queue holds many connections that are not yet accepted."""

    request_queue_size = 128
    daemon_threads = True


@contextmanager
def serving(stub: Stub) -> Iterator[str]:
    """Run the stub in a thread and give its URL."""
    server = Patient(("127.0.0.1", 0), handler_of(stub))
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
