"""Requests and answers in each schema of the engines.

Two schemas: OpenAI's completions and chat, with the extensions of vLLM, llama-server and
llama-cpp-python, and SGLang's /generate. An answer keeps the key of each token, the logarithm of
the token's stated probability, and the likeliest tokens stated with it. A key is `#id` if the
engine returns ids, else the token's text. Fields that an engine omits are None. `answers.py` reads.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

from spsbench.errors import DataError, UnavailableError
from spsbench.foreign import FieldError, cut, listed_names
from spsbench.messages import ignore
from spsbench.serving.answers import Answer as Answer
from spsbench.serving.answers import Stated as Stated
from spsbench.serving.answers import (
    read_openai,
    read_sglang,
    rescored_by_openai,
    rescored_by_sglang,
)
from spsbench.serving.http import FIRST, Arriving, Client, FailedError, RefusedError, Reply
from spsbench.serving.wire import Model, read

TOPS = (10, 5, 1)  # likeliest tokens to request; the largest that the server allows is used
REFUSED = (400, 422)  # statuses of a request with a field that a server does not take


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
    constraint: tuple[str, str] | None = None  # json_schema, regex or grammar, and its text


@dataclass(slots=True)
class Server:
    """A connected server: its engine, model and capabilities."""

    client: Client
    kind: Kind
    model: str
    version: str = ""
    models: tuple[str, ...] = ()
    top: int = 0  # likeliest tokens in an answer; 0 = no logprobs
    extras: bool = True  # accepts fields beyond OpenAI's, and sampling fields that are off
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

    async def answer(self, ask: Ask, arriving: Arriving = ignore) -> Answer:
        """Send a request and return the continuation; `arriving` gets its body before it comes."""
        try:
            return await self._answer(ask, arriving)
        except RefusedError as error:
            if error.status not in REFUSED or not (ask.stream and self.counts_streams):
                raise
            if self.kind is Kind.SGLANG:
                raise
            other = replace(self, counts_streams=False)
            try:
                answer = await other._answer(ask, arriving)
            except RefusedError:
                raise error from None
            self.counts_streams = False
            return answer

    async def _answer(self, ask: Ask, arriving: Arriving) -> Answer:
        path, payload = self.request(ask)
        sglang = self.kind is Kind.SGLANG
        read_schema = read_sglang if sglang else partial(read_openai, chat=ask.chat)

        def answer(reply: Reply) -> Answer:
            parsed = read_schema(reply)
            hide = self.client.hide  # of a key in parts
            parsed.text, parsed.reasoning = hide(parsed.text), hide(parsed.reasoning)
            listed = "".join(parsed.keys)
            if hide(listed) != listed:
                raise FieldError("tokens: they spell the API key, expected a text without it")
            parsed.seconds, parsed.attempts = reply.seconds, reply.attempts
            return parsed

        return await self.client.post(path, payload, answer, f"{self.kind}'s", arriving)

    def request(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of a request in the server's schema."""
        if self.kind is Kind.SGLANG:
            return "/generate", self._of_sglang(ask)
        body: dict[str, Any] = {"model": self.model, "max_tokens": ask.tokens}
        body |= {"temperature": ask.temperature, "seed": ask.seed}
        if self.extras:  # a server may have defaults of its own, so what is off is said
            body |= {"top_p": 1.0} | EXTRAS[self.kind]
        body |= self._more(ask)
        if ask.stream:
            body |= {"stream": True}
            body |= {"stream_options": {"include_usage": True}} if self.counts_streams else {}
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
        supported = {"top_p", "stop", *(EXTRAS[self.kind] if self.extras else ())}
        supported |= {"top_k", "min_p"} if self.kind is Kind.SGLANG else set()
        lacking = [name for name in more if name not in supported and name != "ignore_eos"]
        if ask.ignore_eos and "ignore_eos" not in more:
            lacking.append("ignore_eos")
        if lacking:
            raise DataError(
                f"no {', '.join(lacking)} ({self.client.address}): expected an engine with that "
                f"parameter, found {self.name}. Leave the option out"
            )
        return more | self._constraint(ask)

    def _constraint(self, ask: Ask) -> dict[str, Any]:
        """Return the fields of a constraint on the text.

        Raises:
            DataError: the engine has no such constraint.
        """
        if ask.constraint is None:
            return {}
        kind, content = ask.constraint
        if self.kind is Kind.SGLANG:
            return {{"grammar": "ebnf"}.get(kind, kind): content}
        if self.kind is Kind.VLLM:
            name = {"json_schema": "json"}.get(kind, kind)
            return {
                "structured_outputs": {name: json.loads(content) if name == "json" else content}
            }
        if kind != "json_schema":
            raise DataError(
                f"a constraint by {kind} ({self.client.address}): expected an engine that takes "
                f"one, found {self.name}. Give a JSON schema"
            )
        schema = {"name": "text", "schema": json.loads(content), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

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
        if ask.top:  # those of the prompt too, for its ids
            body |= {"return_logprob": True, "top_logprobs_num": ask.top, "logprob_start_len": 0}
        return body

    async def rescore(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Stated]:
        """Return the distribution that the server states for each of `tokens`, in one pass.

        Uses vLLM's `prompt_logprobs`, or SGLang's logprobs of its input.
        """
        context = (*prompt, *tokens)
        if self.kind is Kind.SGLANG:
            body = self._of_sglang(Ask(context, 1, 0.0, top=self.top))
            rows = partial(rescored_by_sglang, count=len(tokens))
            return await self.client.post("/generate", body, rows, f"{self.kind}'s")
        path, body = self.request(Ask(context, 1, 0.0))
        body["prompt_logprobs"] = self.top
        rows = partial(rescored_by_openai, count=len(tokens))
        return await self.client.post(path, body, rows, f"{self.kind}'s")


async def connect(client: Client, model: str | None = None) -> Server:
    """Detect the engine, its model and its capabilities.

    Raises:
        UnavailableError: no server answers.
        DataError: the model is not served, or several are and `model` is None.
    """
    page = await client.get(FIRST)
    with client.reading(FIRST, "a list of models"):
        listed = page.get("data") if isinstance(page, dict) else None
        entries = read(listed or [], list[Model])
    names = tuple(entry.id for entry in entries)
    kind, version = await _engine(client, entries)
    if model is not None and names and model not in names:
        raise DataError(
            f"no model {cut(model)} ({client.address}): expected one of {listed_names(names)}. "
            "Name it with `model`"
        )
    if model is None and len(names) > 1:
        raise DataError(
            f"{len(names)} models ({client.address}): expected one name, of "
            f"{listed_names(names)}. Name it with `model`"
        )
    if model is None and not names and kind is Kind.OPENAI:
        raise DataError(
            f"no list of models ({client.address}/v1/models): expected a server of the OpenAI "
            "schema or SGLang. Check the URL, or name the model with `model`"
        )
    server = Server(client, kind, model or (names[0] if names else ""), version, names)
    await _probe(server)
    return server


async def _engine(client: Client, entries: Sequence[Model]) -> tuple[Kind, str]:
    owner = entries[0].owned_by if entries else None
    pages = await asyncio.gather(
        *(client.get(path) for path in ("/version", "/server_info", "/get_server_info", "/props"))
    )
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
        except RefusedError as error:
            if error.status in REFUSED:
                continue
            break
        except FailedError:  # fails at any number of logprobs
            break
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
        whole = await server.answer(ask)
        parts = await server.answer(replace(ask, stream=True))
    except (DataError, UnavailableError):
        return
    server.streams = parts.text == whole.text and all(
        _has(whole, name) <= _has(parts, name)
        for name in ("keys", "ids", "prompt_ids", "prompt_tokens", "finish", "counts", "count")
    )
    server.streams &= len(whole.stated) == len(parts.stated)


def _has(answer: Answer, name: str) -> bool:
    return bool(getattr(answer, name))
