"""Requests in OpenAI's schema, with the extensions of engines, and in SGLang's; their probes."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from spsbench.errors import DataError, UnavailableError
from spsbench.serving.answers import Answer as Answer
from spsbench.serving.answers import Reader, SglangReader
from spsbench.serving.http import FIRST, Client, FailedError, RefusedError
from spsbench.serving.wire import Model, ordered, read
from spsbench.serving.wire import Stated as Stated
from spsbench.untrusted import cut

TOPS = (10, 5, 1)  # likeliest tokens to request; the largest that the server allows is used
REFUSED = (400, 422)  # statuses of a request with a field that a server does not take


class Kind(StrEnum):
    """An engine, as detected from its server."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMA_SERVER = "llama-server"
    LLAMA_CPP_PYTHON = "llama-cpp-python"
    OPENAI = "openai"  # any other engine with OpenAI's schema


COMMON = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
OFF: Mapping[Kind, Mapping[str, Any]] = {
    Kind.VLLM: COMMON
    | {"repetition_penalty": 1.0, "ignore_eos": True}
    | {"return_token_ids": True, "return_tokens_as_token_ids": True},
    Kind.SGLANG: COMMON | {"top_k": -1, "repetition_penalty": 1.0, "ignore_eos": True},
    Kind.LLAMA_SERVER: COMMON
    | {"typical_p": 1.0, "repeat_penalty": 1.0, "ignore_eos": False}
    | {"return_tokens": True, "timings_per_token": False},
    Kind.LLAMA_CPP_PYTHON: COMMON | {"repeat_penalty": 1.0},
    Kind.OPENAI: {"top_p": 1.0},
}
"""Sampling that is off, as each request says it: a server may have defaults of its own."""


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
    ignore_eos: bool | None = None  # None = as in `OFF`
    constraint: tuple[str, str] | None = None  # json_schema, regex or grammar, and its text


@dataclass(slots=True)
class Server:
    """A connected server: its engine, model and capabilities."""

    client: Client
    kind: Kind
    model: str
    version: str = ""
    top: int = 0  # likeliest tokens in an answer; 0 = no logprobs
    extras: bool = True  # accepts the fields of `OFF`
    counts_streams: bool = True  # accepts `stream_options`
    takes_ids: bool = False  # accepts prompts as ids
    rescores: bool = False  # returns logprobs of a prompt's tokens
    gives_ids: bool = False
    ids_alone: bool = False  # without logprobs as well
    streams: bool = False  # streamed answers have what whole ones have; `probe_streams` sets it

    @property
    def name(self) -> str:
        """Return the engine and its version in words."""
        return f"{self.kind} {self.version}".strip()

    async def answer(self, ask: Ask) -> Answer:
        """Send a request and return the continuation."""
        path, body = self.request(ask)
        try:
            return (await self._send(path, body)).answer
        except RefusedError as error:
            if error.status not in REFUSED or not body.pop("stream_options", None):
                raise
            try:
                answer = (await self._send(path, body)).answer
            except RefusedError:
                raise error from None
            self.counts_streams = False
            return answer

    async def _send(self, path: str, body: dict[str, Any]) -> Reader:
        reader = SglangReader if self.kind is Kind.SGLANG else Reader
        return await self.client.post(path, body, reader)

    def request(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of a request in the server's schema."""
        is_list = isinstance(ask.prompt, tuple)
        prompt: Any = list(ask.prompt) if is_list else ask.prompt
        params = {"temperature": ask.temperature, **self._sampling(ask), **self._constraint(ask)}
        if self.kind is Kind.SGLANG:
            params |= {"max_new_tokens": ask.tokens, "sampling_seed": ask.seed}
            body = {"sampling_params": params, "stream": ask.stream}
            body["input_ids" if is_list else "text"] = prompt
            if ask.top:  # those of the prompt too, for its ids
                body |= {"return_logprob": True, "top_logprobs_num": ask.top}
                body |= {"logprob_start_len": 0}
            return "/generate", body
        body = {"model": self.model, "max_tokens": ask.tokens, "seed": ask.seed, **params}
        if ask.stream:
            body |= {"stream": True}
            body |= {"stream_options": {"include_usage": True}} if self.counts_streams else {}
        if ask.chat:
            body["messages"] = prompt if is_list else [{"role": "user", "content": prompt}]
            body |= {"logprobs": True, "top_logprobs": ask.top} if ask.top else {}
            return "/v1/chat/completions", body
        body |= {"prompt": prompt, **({"logprobs": ask.top} if ask.top else {})}
        return "/v1/completions", body

    def _sampling(self, ask: Ask) -> dict[str, Any]:
        off = OFF[self.kind] if self.extras else {}
        given: dict[str, Any] = dict(ask.warp) | ({"stop": list(ask.stop)} if ask.stop else {})
        if ask.ignore_eos or (ask.ignore_eos is not None and "ignore_eos" in off):
            given["ignore_eos"] = ask.ignore_eos
        if lacking := [name for name in given if name not in ("top_p", "stop", *off)]:
            raise DataError(
                f"no {', '.join(lacking)} ({self.client.address}): expected an engine with that "
                f"parameter, found {self.name}. Leave the option out"
            )
        return {**off, **given}

    def _constraint(self, ask: Ask) -> dict[str, Any]:
        if ask.constraint is None:
            return {}
        kind, content = ask.constraint
        if self.kind is Kind.SGLANG:
            return {{"grammar": "ebnf"}.get(kind, kind): content}
        schema = json.loads(content) if kind == "json_schema" else content
        if self.kind is Kind.VLLM:
            return {"structured_outputs": {{"json_schema": "json"}.get(kind, kind): schema}}
        if kind != "json_schema":
            raise DataError(
                f"a constraint by {kind} ({self.client.address}): expected an engine that takes "
                f"one, found {self.name}. Give a JSON schema"
            )
        named = {"name": "text", "schema": schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": named}}

    async def rescore(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Stated]:
        """Return the distribution that the server states for each of `tokens`, in one pass."""
        is_sglang = self.kind is Kind.SGLANG
        path, body = self.request(Ask((*prompt, *tokens), 1, 0.0, top=self.top * is_sglang))
        if not is_sglang:
            body["prompt_logprobs"] = self.top
        rows = (await self._send(path, body)).prompt
        if len(rows) < len(tokens):
            raise DataError(
                f"probabilities of {len(rows)} tokens of a prompt ({self.client.address}{path}): "
                f"expected those of {len(tokens)}. Update the server"
            )
        return list(map(ordered, rows[-len(tokens) :]))


async def connect(client: Client, model: str | None = None) -> Server:
    """Detect the engine, its model and its capabilities; of several models one must be named."""
    with client.reading(FIRST, "a list of models"):
        page = await client.get(FIRST)
        listed = page.get("data") if isinstance(page, dict) else None
        entries = read(listed or [], list[Model])
    names = [entry.id for entry in entries]
    kind, version = await _engine(client, entries)
    if names and (len(names) > 1 if model is None else model not in names):
        wrong = f"{len(names)} models" if model is None else f"no model {cut(model)}"
        raise DataError(
            f"{wrong} ({client.address}): expected one of {cut(', '.join(names), 400)}. "
            "Name it with `model`"
        )
    if model is None and not names and kind is Kind.OPENAI:
        raise DataError(
            f"no list of models ({client.address}/v1/models): expected a server of the OpenAI "
            "schema or SGLang. Check the URL, or name the model with `model`"
        )
    server = Server(client, kind, model or (names[0] if names else ""), version)
    await _probe(server)
    return server


async def _engine(client: Client, entries: Sequence[Model]) -> tuple[Kind, str]:
    owner = entries[0].owned_by if entries else None
    paths = ("/version", "/server_info", "/get_server_info", "/props")
    pages = await asyncio.gather(*map(client.get, paths))
    version, info, older, props = (page if isinstance(page, dict) else {} for page in pages)
    info = info or older
    if owner == "sglang" or "disaggregation_mode" in info or "avg_spec_accept_length" in info:
        return Kind.SGLANG, cut(info.get("version") or "")
    if owner == "vllm":
        return Kind.VLLM, cut(version.get("version") or "")
    if owner == "llamacpp" or "default_generation_settings" in props:
        return Kind.LLAMA_SERVER, cut(props.get("build_info") or "")
    if owner == "me" and entries[0].permissions == []:  # the engine's own spelling
        return Kind.LLAMA_CPP_PYTHON, ""
    return Kind.OPENAI, ""


async def _probe(server: Server) -> None:
    """Test the server's capabilities with answers of two tokens: extras, logprobs, ids."""
    try:
        plain = await server.answer(Ask("The", 2, 1.0))
    except RefusedError as error:
        if error.status not in REFUSED:
            raise
        server.extras = False
        plain = await server.answer(Ask("The", 2, 1.0))
    server.gives_ids = server.ids_alone = plain.ids is not None
    for top in TOPS:
        try:
            answer = await server.answer(Ask("The", 2, 1.0, top=top))
        except (RefusedError, FailedError) as error:
            if getattr(error, "status", 500) in REFUSED:
                continue
            break  # it fails at any number of logprobs
        if any(answer.stated):
            server.top = min(top, max(map(len, answer.stated)))
            server.gives_ids |= answer.ids is not None
            break
    if server.kind not in (Kind.VLLM, Kind.SGLANG, Kind.LLAMA_SERVER):
        return
    try:
        answer = await server.answer(Ask((1, 2, 3), 2, 0.0))
        server.takes_ids = answer.prompt_tokens in (None, 3)
        if server.takes_ids and server.top and server.kind is not Kind.LLAMA_SERVER:
            server.rescores = len(await server.rescore((1, 2), (3, 2))) == 2
    except (DataError, FailedError):
        return


async def probe_streams(server: Server) -> None:
    """Set `streams` if a streamed answer has all that a whole one has.

    SGLang repeats all tokens in each event, and llama-cpp-python ends a stream at the next request.
    """
    if server.kind in (Kind.SGLANG, Kind.LLAMA_CPP_PYTHON):
        return
    ask = Ask("The", 3, 0.0, top=server.top)
    try:
        whole = (await server.answer(ask)).to_json()
        parts = (await server.answer(replace(ask, stream=True))).to_json()
    except (DataError, UnavailableError):
        return
    names = ("keys", "ids", "prompt_ids", "prompt_tokens", "finish", "counts", "count")
    server.streams = parts["text"] == whole["text"] and all(
        bool(parts[name]) or not whole[name] for name in names
    )
    server.streams &= len(whole["stated"]) == len(parts["stated"])
