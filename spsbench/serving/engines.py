"""Requests in OpenAI's schema, with the extensions of engines, and in SGLang's; their probes."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgspec

from spsbench.errors import DataError, UnavailableError
from spsbench.serving.answers import Answer as Answer
from spsbench.serving.answers import AnswerReader, SglangReader
from spsbench.serving.http import FIRST, Client, FailedError, RefusedError
from spsbench.serving.wire import UNLISTED, Model, order_row, read_json
from spsbench.serving.wire import Stated as Stated
from spsbench.tables import read_table
from spsbench.untrusted import cut

TOPS = (10, 5, 1)  # likeliest tokens to request; the largest that the server allows is used
REFUSED = (400, 422)  # statuses of a request with a field that a server does not take
NO_ROUTE = (404, 405)
GENERATE = "/generate"  # SGLang's own route
SEED = "seed"
PROBED = 4  # tokens whose rows tell the length of a list, and its digits
PENALTY, OF_ANSWER, BIASES = "repetition_penalty", "repetition_penalty of the answer", "logit_bias"
MAX_BIAS = 100.0  # the bound of the schema; vLLM cuts what is beyond
MAX_PLACES = 5  # decimal places of logarithms that are taken as rounded


class Kind(StrEnum):
    """An engine, as detected from its server."""

    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMA_SERVER = "llama-server"
    LLAMA_CPP_PYTHON = "llama-cpp-python"
    OPENAI = "openai"  # any other engine with OpenAI's schema


TABLE = read_table(__file__, "engines.toml")
GREEDY_SAFE = frozenset(TABLE.pop("greedy_safe"))
COMMON = TABLE.pop("samplers")
SAMPLERS: Mapping[str, Mapping[str, Any]] = {k: COMMON | v["samplers"] for k, v in TABLE.items()}
"""Samplers that are off, as each request says it: a server may have defaults of its own."""


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
    stop_ids: tuple[int, ...] = ()  # tokens that end the text; of vLLM
    ignore_eos: bool | None = None  # None = as in the table of engines
    constraint: tuple[str, str] | None = None  # json_schema, regex or grammar, and its text
    processors: Mapping[str, Any] = field(default_factory=dict)  # as `processor_fields` takes them


@dataclass(slots=True)
class Server:
    """A connected server: its engine, model and capabilities."""

    client: Client
    kind: Kind
    model: str
    version: str = ""
    top: int = 0  # likeliest tokens in an answer; 0 = no logprobs
    refused: tuple[str, ...] = ()  # fields that it does not take, each left out alone
    uncertain: tuple[str, ...] = ()  # samplers among them that may be on by a default of its own
    no_greedy: str = ""  # why it refuses temperature 0; empty = it accepts that
    digit: float = 0.0  # last digit that it prints of a logarithm, such as 0.01; 0 = all digits
    takes_ids: bool = False  # accepts prompts as ids
    rescores: bool = False  # returns logprobs of a prompt's tokens
    gives_ids: bool = False
    ids_alone: bool = False  # without logprobs as well
    streams: bool = False  # streamed answers have what whole ones have; `probe_streams` sets it

    @property
    def name(self) -> str:
        """Return the engine and its version in words."""
        return f"{self.kind} {self.version}".strip()

    @property
    def coldest(self) -> float:
        """Return the least temperature that the server accepts: 0, or 1 where it refuses that."""
        return 1.0 if self.no_greedy else 0.0

    async def answer(self, ask: Ask) -> Answer:
        """Return the server's answer to a request; RefusedError: it does not take the request.

        `stream_options`, once refused, are left out, now and later. UnavailableError: no answer.
        """
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
            self.refused += ("stream_options",)
            return answer

    async def _send(self, path: str, body: dict[str, Any]) -> AnswerReader:
        reader = SglangReader if path == GENERATE else AnswerReader
        return await self.client.post(path, body, reader)

    async def answer_without_refused(self, ask: Ask) -> Answer:
        """Return an answer after finding the optional fields that the server refuses.

        After a refusal all are left out, then each is tried again: `refused` holds those that fail,
        for later requests. RefusedError: it is refused without them, or by another status.
        """
        try:
            return await self.answer(ask)
        except RefusedError as error:
            if error.status not in REFUSED:
                raise
            refusal = error
        optional = [*SAMPLERS[self.kind], *TABLE[self.kind]["fields"], SEED]
        self.refused = tuple(optional)
        try:
            answer = await self.answer(ask)
        except RefusedError:
            raise refusal from None
        for name in optional:
            refused = self.refused
            self.refused = tuple(other for other in refused if other != name)
            try:
                answer = await self.answer(ask)
            except (RefusedError, FailedError):
                self.refused = refused
        return answer

    def request(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        """Return a request's path and body for the engine; DataError: an option that it lacks.

        The path is SGLang's or OpenAI's. Refused samplers are sent only where `ask` sets them.
        """
        is_list = isinstance(ask.prompt, tuple)
        prompt: Any = list(ask.prompt) if is_list else ask.prompt
        params = {"temperature": ask.temperature, **self._sampling(ask), **self._constraint(ask)}
        if self.kind is Kind.SGLANG and not ask.chat:
            params |= {"max_new_tokens": ask.tokens}
            params |= {"sampling_seed": ask.seed} if SEED not in self.refused else {}
            body = {"sampling_params": params, "stream": ask.stream}
            body["input_ids" if is_list else "text"] = prompt
            if ask.top:  # those of the prompt too, for its ids
                body |= {"return_logprob": True, "top_logprobs_num": ask.top}
                body |= {"logprob_start_len": 0, "return_text_in_logprobs": True}
            return GENERATE, body
        body = {"model": self.model, "max_tokens": ask.tokens, **params}
        body |= {"return_spec_tokens_details": True} if self.kind is Kind.SGLANG else {}
        body |= {SEED: ask.seed} if SEED not in self.refused else {}
        if ask.stream:
            body |= {"stream": True}
            counts = "stream_options" not in self.refused
            body |= {"stream_options": {"include_usage": True}} if counts else {}
        if ask.chat:
            body["messages"] = prompt if is_list else [{"role": "user", "content": prompt}]
            body |= {"logprobs": True, "top_logprobs": ask.top} if ask.top else {}
            return "/v1/chat/completions", body
        body |= {"prompt": prompt, **({"logprobs": ask.top} if ask.top else {})}
        return "/v1/completions", body

    def _sampling(self, ask: Ask) -> dict[str, Any]:
        """Return the fields beside temperature and seed: what `ask` sets, else defaults.

        Refused ones are left out of the defaults. DataError: the engine lacks what `ask` sets.
        """
        fields = {**SAMPLERS[self.kind], **TABLE[self.kind]["fields"]}
        chosen: dict[str, Any] = dict(ask.warp) | ({"stop": list(ask.stop)} if ask.stop else {})
        if ask.ignore_eos or (ask.ignore_eos is not None and "ignore_eos" in fields):
            chosen["ignore_eos"] = ask.ignore_eos
        if lacking := [name for name in chosen if name not in (*fields, "stop")]:
            raise DataError(
                f"no {', '.join(lacking)} ({self.client.address}): expected an engine with that "
                f"parameter, found {self.name}. Leave the option out"
            )
        chosen |= {"stop_token_ids": list(ask.stop_ids)} if ask.stop_ids else {}
        where = f"{self.client.address}, {self.name}"
        chosen |= processor_fields(self.kind, ask.processors, where)
        return {n: v for n, v in fields.items() if n not in self.refused} | chosen

    def _constraint(self, ask: Ask) -> dict[str, Any]:
        """Return a constraint's fields, if any; DataError: the engine has JSON schemas alone."""
        if ask.constraint is None:
            return {}
        kind, content = ask.constraint
        if self.kind is Kind.SGLANG and not ask.chat:
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
        """Return the row stated at each of 1 or more `tokens` after `prompt`; DataError: fewer."""
        is_sglang = self.kind is Kind.SGLANG
        ask = Ask((*prompt, *tokens), 1, self.coldest, top=self.top * is_sglang)
        path, body = self.request(ask)
        if not is_sglang:
            body["prompt_logprobs"] = self.top
        rows = (await self._send(path, body)).prompt
        if len(rows) < len(tokens):
            raise DataError(
                f"probabilities of {len(rows)} tokens of a prompt ({self.client.address}{path}): "
                f"expected those of {len(tokens)}. Update the server"
            )
        return list(map(order_row, rows[-len(tokens) :]))


def processor_fields(kind: Kind, options: Mapping[str, Any], server: str) -> dict[str, Any]:
    """Return the engine's fields of a request for the processors that are on.

    `options` are those on, by name, with `logit_bias` as pairs of a token id and a bias; `server`
    is named in messages. Fields that make one count the whole text are among them. DataError: the
    engine lacks an option or means another by it, or a bias is beyond `MAX_BIAS`.
    """
    values, names = dict(options), TABLE[kind]["processors"]
    number, colon, _ = str(values.pop(PENALTY, "")).partition(":")
    if number:
        values[OF_ANSWER if colon else PENALTY] = float(number)
    if any(abs(bias) > MAX_BIAS for _, bias in values.get(BIASES, ())):
        raise DataError(f"a bias beyond {MAX_BIAS:g} ({server}): expected less. Ban with bad_words")
    if lacking := [name for name in values if name not in names]:
        raise DataError(
            f"no {', '.join(lacking)} ({server}): expected an engine with that parameter and of "
            "that meaning. Leave the option out"
        )
    if BIASES in values:
        values[BIASES] = {str(token): bias for token, bias in values[BIASES]}
    further = TABLE[kind].get("with", {})  # what makes a field count the whole text
    fields = {names[name]: value for name, value in values.items()}
    return fields | {n: v for name in fields for n, v in further.get(name, {}).items()}


async def detect_engine(client: Client, model: str | None = None, *, chat: bool = False) -> Server:
    """Return the engine of a server, its model and its capabilities, found by short requests.

    `model` None: the only one; "" where an engine lists none. With `chat` all requests are chats,
    as a server may have no other route. DataError: several models, not this one, neither a list of
    models nor a known engine, or another schema. RefusedError, UnavailableError: as `_probe`.
    """
    with client.reading(FIRST, "a list of models"):
        listed = _mapping(await client.get(FIRST)).get("data")
        entries = read_json(listed or [], list[Model])
    names = [entry.id for entry in entries]
    kind, version, defaults = await _engine(client, entries)
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
    await _probe(server, chat=chat)
    off = SAMPLERS[kind]
    refused = [name for name in server.refused if name in off]
    server.uncertain = tuple(name for name in refused if defaults.get(name) != off[name])
    return server


async def _engine(client: Client, entries: Sequence[Model]) -> tuple[Kind, str, Mapping[str, Any]]:
    """Return the engine by pages and models, else OPENAI; version, sampling: empty if unknown."""
    owner = entries[0].owned_by if entries else None
    paths = ("/version", "/server_info", "/get_server_info", "/props")
    pages = await asyncio.gather(*map(client.get, paths))
    version, info, older, props = map(_mapping, pages)
    info = info or older
    if owner == "sglang" or "disaggregation_mode" in info or "avg_spec_accept_length" in info:
        defaults = info.get("preferred_sampling_params")
        return Kind.SGLANG, cut(info.get("version") or ""), _mapping(defaults)
    if owner == "vllm":
        return Kind.VLLM, cut(version.get("version") or ""), {}
    if owner == "llamacpp" or "default_generation_settings" in props:
        defaults = _mapping(props.get("default_generation_settings"))
        build = cut(props.get("build_info") or "")
        return Kind.LLAMA_SERVER, build, {**defaults, **_mapping(defaults.get("params"))}
    if owner == "me" and entries[0].permissions == []:  # the engine's own spelling
        return Kind.LLAMA_CPP_PYTHON, "", {}
    return Kind.OPENAI, "", {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


async def _probe(server: Server, *, chat: bool) -> None:
    """Set the capabilities of `server` by short answers: fields, temperature 0, logprobs, ids.

    No ids in a `chat`. RefusedError, FailedError: by the simplest request alone; others: by any.
    """
    short = Ask("The", 2, 1.0, chat=chat)
    try:
        plain = await server.answer_without_refused(short)
    except RefusedError as error:
        if error.status in NO_ROUTE and not chat:
            line = f"{error}. Where the server has chats alone, take `chat`"
            raise RefusedError(line, error.status, error.reason) from None
        raise
    server.gives_ids = server.ids_alone = plain.ids is not None
    cold = replace(short, temperature=0.0)
    try:
        await server.answer(cold)
    except (RefusedError, FailedError) as error:
        server.no_greedy, cold = str(error), short
    for top in TOPS:
        try:
            answer = await server.answer(replace(cold, tokens=PROBED, top=top))
        except (RefusedError, FailedError) as error:
            if getattr(error, "status", 500) in REFUSED:
                continue
            break  # it fails at any number of logprobs
        if rows := [row for row in answer.stated if row]:
            # the emitted token may be beside the likeliest: the shortest row is these alone
            server.top = min(top, *map(len, rows))
            server.digit = last_digit([logprob for row in rows for _, logprob in row])
            server.gives_ids |= answer.ids is not None
            break
    if not chat:
        await probe_ids(server)


async def probe_ids(server: Server) -> None:
    """Set `takes_ids` and `rescores` by prompts as ids, if the engine may take them and does so."""
    if server.kind not in (Kind.VLLM, Kind.SGLANG, Kind.LLAMA_SERVER):
        return
    try:
        answer = await server.answer(Ask((1, 2, 3), 2, server.coldest))
        server.takes_ids = answer.prompt_tokens in (None, 3)
        if server.takes_ids and server.top and server.kind is not Kind.LLAMA_SERVER:
            server.rescores = len(await server.rescore((1, 2), (3, 2))) == 2
    except (DataError, FailedError):
        return


def last_digit(logprobs: Sequence[float]) -> float:
    """Return the last decimal place of printed logarithms, as 0.01; 0: beyond five, or none."""
    printed = [logprob for logprob in logprobs if UNLISTED < logprob < 0]
    for places in range(1, MAX_PLACES + 1) if printed else ():
        if all(round(logprob, places) == logprob for logprob in printed):
            return 10.0**-places
    return 0.0


async def probe_streams(server: Server, *, chat: bool = False) -> None:
    """Set `streams` if a streamed answer has all that a whole one has; no errors.

    SGLang repeats all tokens in each event, and llama-cpp-python ends a stream at the next request:
    neither is asked, and `streams` stays False.
    """
    if server.kind in (Kind.SGLANG, Kind.LLAMA_CPP_PYTHON):
        return
    ask = Ask("The", 3, server.coldest, top=server.top, chat=chat)
    try:
        whole = msgspec.to_builtins(await server.answer(ask))
        parts = msgspec.to_builtins(await server.answer(replace(ask, stream=True)))
    except (DataError, UnavailableError):
        return
    names = ("keys", "ids", "prompt_ids", "prompt_tokens", "finish", "counts", "count")
    server.streams = parts["text"] == whole["text"] and all(
        bool(parts[name]) or not whole[name] for name in names
    )
    server.streams &= len(whole["stated"]) == len(parts["stated"])
