"""Requests and answers in each schema of the engines.

Two schemas: OpenAI's completions and chat, with the extensions of vLLM, llama-server and
llama-cpp-python, and SGLang's /generate. An answer keeps the key of each token, the logarithm of
the token's stated probability, and the likeliest tokens stated with it. A key is `#id` if the
engine returns ids, else the token's text. Fields that an engine omits are None.
"""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from spsbench.errors import DataError
from spsbench.servers.http import FIRST, Client, FailedError, RefusedError, Reply

TOPS = (10, 5, 1)  # likeliest tokens to request; the largest that the server allows is used
BY_ID = re.compile(r"#\d+")
Stated = list[tuple[str, float]]
"""Tokens and the logarithms of their stated probabilities, likeliest first."""


class Kind(StrEnum):
    """An engine, as detected from its server."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMA_SERVER = "llama-server"
    LLAMA_CPP_PYTHON = "llama-cpp-python"
    OPENAI = "openai"  # any other engine with OpenAI's schema


EXTRAS: dict[Kind, dict[str, Any]] = {
    Kind.VLLM: {
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "ignore_eos": True,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    },
    Kind.LLAMA_SERVER: {
        "top_k": 0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "repeat_penalty": 1.0,
        "return_tokens": True,
        "timings_per_token": False,
    },
    Kind.LLAMA_CPP_PYTHON: {"top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0},
    Kind.OPENAI: {},
    Kind.SGLANG: {},
}


IGNORES_EOS = (Kind.VLLM, Kind.SGLANG, Kind.LLAMA_SERVER)


@dataclass(frozen=True, slots=True)
class Ask:
    """A request: a prompt as text or ids, and sampling parameters."""

    prompt: str | tuple[int, ...] | tuple[Mapping[str, str], ...]  # messages, for a chat
    tokens: int
    temperature: float = 1.0
    seed: int = 0
    top: int = 0  # likeliest tokens to return; 0 = no logprobs at all
    stream: bool = False
    chat: bool = False
    warp: Mapping[str, float] = field(default_factory=dict)  # top_p, top_k, min_p, where not off
    stop: tuple[str, ...] = ()
    ignore_eos: bool | None = None  # None = as the engine's `EXTRAS`


@dataclass(slots=True)
class Answer:
    """One continuation."""

    text: str
    keys: list[str]  # keys of the tokens that the engine lists
    own: list[float]  # log probability of each token
    stated: list[Stated]  # likeliest tokens at each token
    finish: str | None
    ids: list[int] | None = None
    prompt_ids: list[int] | None = None
    prompt_tokens: int | None = None
    count: int | None = None  # tokens by the engine's count
    counts: dict[str, Any] = field(default_factory=dict)  # of drafting, in the engine's terms
    stamps: list[float] = field(default_factory=list)  # arrival times of text in seconds
    sizes: list[int] = field(default_factory=list)  # tokens that came at each; 0 = not said
    stopped_by: str | None = None  # the stop string, where the engine says so
    seconds: float = 0.0
    attempts: int = 1

    @property
    def tokens(self) -> int:
        """Return the number of tokens by the engine's count, else as listed, else as arrived."""
        listed = len(self.ids if self.ids is not None else self.keys)
        return self.count or listed or len(self.stamps)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for a line of a file."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Answer":
        """Read the values written by `to_json`."""
        stated = [[(str(key), float(lp)) for key, lp in row] for row in values["stated"]]
        return cls(**{**values, "stated": stated})


@dataclass(slots=True)
class Server:
    """A connected server: its engine, model and capabilities."""

    client: Client
    kind: Kind
    model: str
    version: str = ""
    models: tuple[str, ...] = ()
    top: int = 0  # likeliest tokens in an answer; 0 = no logprobs
    extras: bool = True  # accepts the fields beyond OpenAI's
    takes_ids: bool = False  # accepts prompts as ids
    rescores: bool = False  # returns logprobs of a prompt's tokens
    gives_ids: bool = False

    @property
    def name(self) -> str:
        """Return the engine and its version in words."""
        return f"{self.kind} {self.version}".strip()

    async def answer(self, ask: Ask) -> Answer:
        """Send a request and return the continuation."""
        path, payload = self.request(ask)
        reply = await self.client.post(path, payload)
        with self._reading(path):
            if self.kind is Kind.SGLANG:
                found = read_sglang(reply)
            else:
                found = read_openai(reply, chat=ask.chat)
        for token, key in zip(found.ids or (), found.keys, strict=False):
            if BY_ID.fullmatch(key) and key != f"#{token}":
                raise DataError(
                    f"token {token} of an answer has the logprobs of token {key[1:]} "
                    f"({self.client.address}): expected those of one token. Update the server"
                )
        found.seconds, found.attempts = reply.seconds, reply.attempts
        return found

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
            raise DataError(
                f"an answer of another schema ({self.client.address}{path}: "
                f"{type(error).__name__} {error}): expected {self.kind}'s. Check the URL"
            ) from error

    def request(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of a request in the server's schema."""
        if self.kind is Kind.SGLANG:
            return "/generate", self._of_sglang(ask)
        body: dict[str, Any] = {"model": self.model, "max_tokens": ask.tokens}
        body |= {"temperature": ask.temperature, "top_p": 1.0, "seed": ask.seed}
        if self.extras:
            body |= EXTRAS[self.kind]
        body |= self._more(ask)
        if ask.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if ask.chat:
            content = ask.prompt
            text = isinstance(content, str)
            body["messages"] = [{"role": "user", "content": content}] if text else list(content)
            body |= {"logprobs": True, "top_logprobs": ask.top} if ask.top else {}
            return "/v1/chat/completions", body
        body["prompt"] = list(ask.prompt) if isinstance(ask.prompt, tuple) else ask.prompt
        body |= {"logprobs": ask.top} if ask.top else {}
        return "/v1/completions", body

    def _more(self, ask: Ask) -> dict[str, Any]:
        """Return the sampling parameters that only some requests have.

        Raises:
            DataError: the engine has no such parameter.
        """
        more: dict[str, Any] = dict(ask.warp) | ({"stop": list(ask.stop)} if ask.stop else {})
        if ask.ignore_eos is not None and self.kind in IGNORES_EOS:
            more["ignore_eos"] = ask.ignore_eos
        known = {"top_p", "stop", *(EXTRAS[self.kind] if self.extras else ())}
        known |= {"top_k", "min_p"} if self.kind is Kind.SGLANG else set()
        lacking = [name for name in more if name not in known and name != "ignore_eos"]
        if ask.ignore_eos and "ignore_eos" not in more:
            lacking.append("ignore_eos")
        if lacking:
            raise DataError(
                f"no {', '.join(lacking)} ({self.client.address}): expected an engine with that "
                f"parameter, found {self.name}. Leave the option out"
            )
        return more

    def _of_sglang(self, ask: Ask) -> dict[str, Any]:
        body: dict[str, Any] = {
            "sampling_params": {
                "temperature": ask.temperature,
                "max_new_tokens": ask.tokens,
                "top_p": 1.0,
                "top_k": -1,
                "min_p": 0.0,
                "repetition_penalty": 1.0,
                "ignore_eos": True,
                "sampling_seed": ask.seed,
            }
            | self._more(ask),
            "stream": ask.stream,
        }
        named = "input_ids" if isinstance(ask.prompt, tuple) else "text"
        body[named] = list(ask.prompt) if isinstance(ask.prompt, tuple) else ask.prompt
        if ask.top:
            body |= {"return_logprob": True, "top_logprobs_num": ask.top}
        return body

    async def rescore(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Stated]:
        """Return the distribution that the server states for each of `tokens`, in one pass.

        Uses vLLM's `prompt_logprobs`, or SGLang's logprobs of its input.
        """
        text = [*prompt, *tokens]
        if self.kind is Kind.SGLANG:
            body = self._of_sglang(Ask(tuple(text), 1, 0.0, top=self.top))
            body["logprob_start_len"] = 0
            reply = await self.client.post("/generate", body)
            with self._reading("/generate"):
                rows = reply.events[-1][1]["meta_info"]["input_top_logprobs"]
                return [
                    [(f"#{each[1]}", each[0]) for each in row or ()] for row in rows[-len(tokens) :]
                ]
        path, body = self.request(Ask(tuple(text), 1, 0.0))
        body["prompt_logprobs"] = self.top
        reply = await self.client.post(path, body)
        with self._reading(path):
            rows = reply.events[-1][1]["choices"][0]["prompt_logprobs"][-len(tokens) :]
            return [
                ordered([(f"#{token}", each["logprob"]) for token, each in (row or {}).items()])
                for row in rows
            ]


async def connect(client: Client, model: str | None = None) -> Server:
    """Detect the engine, its model and its capabilities.

    Raises:
        UnavailableError: no server answers.
        DataError: the model is not served, or several are and `model` is None.
    """
    listed = await client.get(FIRST)
    entries = listed.get("data", []) if isinstance(listed, dict) else []
    names = tuple(str(each.get("id")) for each in entries)
    kind, version = await _engine(client, entries)
    if model is not None and names and model not in names:
        raise DataError(
            f"no model {model} ({client.address}): expected one of {', '.join(names)}. "
            "Name it with --model"
        )
    if model is None and len(names) > 1:
        raise DataError(
            f"{len(names)} models ({client.address}): expected one name, of {', '.join(names)}. "
            "Name it with --model"
        )
    if model is None and not names and kind is Kind.OPENAI:
        raise DataError(
            f"no list of models ({client.address}/v1/models): expected a server of the OpenAI "
            "schema or SGLang. Check the URL, or name the model with --model"
        )
    server = Server(client, kind, model or (names[0] if names else ""), version, names)
    await _probe(server)
    return server


async def _engine(client: Client, entries: list[Any]) -> tuple[Kind, str]:
    owner = str(entries[0].get("owned_by", "")) if entries else ""
    pages = await asyncio.gather(
        *(client.get(path) for path in ("/version", "/server_info", "/get_server_info", "/props"))
    )
    version, info, older, props = (page if isinstance(page, dict) else {} for page in pages)
    info = info or older
    if owner == "sglang" or "disaggregation_mode" in info or "avg_spec_accept_length" in info:
        return Kind.SGLANG, str(info.get("version", ""))
    if owner == "vllm":
        return Kind.VLLM, str(version.get("version", ""))
    if owner == "llamacpp" or "default_generation_settings" in props:
        return Kind.LLAMA_SERVER, str(props.get("build_info", ""))
    if owner == "me" and entries[0].get("permissions") == []:  # the engine's own spelling
        return Kind.LLAMA_CPP_PYTHON, ""
    return Kind.OPENAI, ""


async def _probe(server: Server) -> None:
    """Test the server's capabilities with answers of two tokens: extras, logprobs, ids."""
    try:
        plain = await server.answer(Ask("The", 2, 1.0))
    except RefusedError as error:
        if error.status not in (400, 422):
            raise
        server.extras = False
        plain = await server.answer(Ask("The", 2, 1.0))
    server.gives_ids = plain.ids is not None
    for top in TOPS:
        try:
            found = await server.answer(Ask("The", 2, 1.0, top=top))
        except RefusedError as error:
            if error.status in (400, 422):
                continue
            break
        except FailedError:  # fails at any number of logprobs
            break
        if any(found.stated):
            server.top = min(top, max(map(len, found.stated)))
            server.gives_ids |= found.ids is not None
            break
    if server.kind not in (Kind.VLLM, Kind.SGLANG, Kind.LLAMA_SERVER):
        return
    try:
        found = await server.answer(Ask((1, 2, 3), 2, 0.0))
        server.takes_ids = found.prompt_tokens in (None, 3)
        if server.takes_ids and server.top and server.kind is not Kind.LLAMA_SERVER:
            server.rescores = len(await server.rescore((1, 2), (3, 2))) == 2
    except (DataError, FailedError):
        return


def read_openai(reply: Reply, *, chat: bool = False) -> Answer:
    """Read completions or chat, whole or in chunks."""
    found = Answer("", [], [], [], None)
    for at, event in reply.events:
        usage = event.get("usage") or {}
        found.prompt_tokens = usage.get("prompt_tokens", found.prompt_tokens)
        found.count = usage.get("completion_tokens", found.count)
        _count(found, event)
        for choice in event.get("choices") or ():
            part = choice.get("delta") or choice.get("message") or {}
            text = part.get("content") if chat or part else choice.get("text")
            before = len(found.keys)
            _openai_tokens(found, choice)
            size = len(found.keys) - before
            if ids := choice.get("token_ids") or choice.get("tokens"):
                found.ids = [*(found.ids or ()), *ids]
                size = len(ids)
            prompt = choice.get("prompt_token_ids") or event.get("prompt_token_ids")
            found.prompt_ids = prompt or found.prompt_ids
            found.finish = choice.get("finish_reason") or found.finish
            reason = choice.get("stop_reason")
            found.stopped_by = reason if isinstance(reason, str) else found.stopped_by
            _count(found, choice)
            if text or choice.get("token_ids"):
                found.text += text or ""
                found.stamps.append(at)
                found.sizes.append(size)
    if found.ids is None and found.keys and all(key.startswith("#") for key in found.keys):
        found.ids = [int(key[1:]) for key in found.keys if key[1:].isdigit()]
        if len(found.ids) != len(found.keys):  # texts that begin with a hash
            found.ids = None
    return found


def _openai_tokens(found: Answer, choice: dict[str, Any]) -> None:
    logprobs = choice.get("logprobs") or {}
    if logprobs.get("content"):
        for each in logprobs["content"]:
            found.keys.append(key_of(each["token"], each.get("id")))
            found.own.append(float(each["logprob"]))
            beside = each.get("top_logprobs") or ()
            row = [(key_of(o["token"], o.get("id")), float(o["logprob"])) for o in beside]
            found.stated.append(ordered(row))
    elif logprobs.get("tokens"):
        found.keys += [key_of(token) for token in logprobs["tokens"]]
        found.own += [float(value or 0.0) for value in logprobs["token_logprobs"]]
        for row in logprobs.get("top_logprobs") or [None] * len(logprobs["tokens"]):
            beside = [(key_of(token), float(value)) for token, value in (row or {}).items()]
            found.stated.append(ordered(beside))


def _count(found: Answer, event: dict[str, Any]) -> None:
    """Keep the speculation statistics of vLLM and llama-server."""
    metrics = (event.get("metrics") or {}).get("speculative_decoding")
    if metrics:
        found.counts = {"vllm": metrics}
    timings = event.get("timings") or {}
    if timings.get("draft_n"):
        found.counts = {"llama": timings}


def read_sglang(reply: Reply) -> Answer:
    """Read /generate; each event of a stream holds the whole text so far."""
    found, before = Answer("", [], [], [], None), 0
    for at, event in reply.events:
        now = len(event.get("output_ids") or event["text"])
        if now > before:
            found.stamps.append(at)
            found.sizes.append(now - before if event.get("output_ids") else 0)
        before = max(now, before)
    _, last = reply.events[-1]
    meta = last["meta_info"]
    found.text, found.ids = last["text"], last.get("output_ids")
    finish = meta.get("finish_reason")
    found.finish = finish.get("type") if isinstance(finish, dict) else finish
    matched = finish.get("matched") if isinstance(finish, dict) else None
    found.stopped_by = matched if isinstance(matched, str) else None
    found.prompt_tokens, found.count = meta.get("prompt_tokens"), meta.get("completion_tokens")
    for lp, token, *_ in meta.get("output_token_logprobs") or ():
        found.keys.append(f"#{token}")
        found.own.append(float(lp))
    for row in meta.get("output_top_logprobs") or ():
        found.stated.append(ordered([(f"#{each[1]}", float(each[0])) for each in row or ()]))
    if any(name.startswith("spec_") for name in meta):
        spec = {name: value for name, value in meta.items() if name.startswith("spec_")}
        found.counts = {"sglang": spec | {"completion_tokens": found.count}}
    return found


def key_of(token: str, own: int | None = None) -> str:
    """Return `#id` of a token where its id is known, else its text."""
    if own is not None:
        return f"#{own}"
    return f"#{token[9:]}" if token.startswith("token_id:") else token


def ordered(row: Stated) -> Stated:
    """Sort by probability, the likeliest first."""
    return sorted(row, key=lambda each: -each[1])
