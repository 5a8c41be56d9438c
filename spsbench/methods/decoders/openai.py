"""A server of OpenAI's schema as the decoder: vLLM, llama-server, llama-cpp-python and others.

The text, its token ids and the counts of drafting are the server's own; what it does not tell is
n/a. Acceptance comes from the fields of an answer (vLLM, llama-server's timings), else from the
difference of the counters at /metrics, which holds only while nobody else uses the server; of a
batch it is of all texts together.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Self

from torch import Tensor

from spsbench.errors import DataError, SpsError, UnavailableError
from spsbench.loop.decoder import Decoder, DecoderContext, EnginePrompt, RefusedPromptError
from spsbench.loop.request_batch import RequestBatch
from spsbench.loop.types import Limits, NoiseStream, Purpose, Round, Stop
from spsbench.methods.processors import as_requested
from spsbench.serving.acceptance import (
    Acceptance,
    PassTokens,
    contradiction,
    counters,
    of_answer,
    page_delta,
    spans,
)
from spsbench.serving.address import BASELINE_KEY, KEY, ApiKey, check_address
from spsbench.serving.answers import ENDS, AbortedError
from spsbench.serving.engines import Answer, Ask, Kind, Server, detect_engine, probe_ids
from spsbench.serving.http import Client, HttpLimits, ImpossibleAnswerError, RefusedError
from spsbench.settings.cell import WARP, Cell, CellRequest, WarpSettings
from spsbench.settings.constraint import constraint_kind
from spsbench.untrusted import RangeError, cut

OF_PROMPT = (400, 413, 422)  # statuses of a prompt that the server does not continue
CUT = ("length", "context")  # ends of a text that goes on
OPENS = "/version"  # a small page, or none: asking for it opens a connection

_servers: dict[tuple[str, str, bool], Server] = {}  # by address, model, and whether chats alone

log = logging.getLogger(__name__)


class OpenAiDecoder(Decoder):
    """A running server makes the text; ArS comes from `baseline`, a server without a draft.

    Args:
        url: address of the server; a key comes from SPS_API_KEY, the baseline's from
            SPS_BASELINE_API_KEY.
        model: name of the model on the server, if it serves several.
        baseline: address of a server of the same model that does not speculate.
        logprobs: ask for the probability of each token, by whose id the ids are checked.
        timeout: seconds without a new token of an answer.
        retries: attempts after the first.
    """

    kinds: ClassVar[frozenset[Kind] | None] = None  # engines that this decoder speaks to; None: all

    @classmethod
    def open(
        cls,
        context: DecoderContext,
        url: str,
        model: str = "",
        baseline: str = "",
        logprobs: bool = False,
        timeout: float = 120.0,
        retries: int = 3,
    ) -> Self:
        """Return a decoder over a client of `url`, at K = 0 of any `baseline`; nothing is sent."""
        other = context.cell.k == 0 and baseline
        limits = HttpLimits(timeout=timeout, retries=retries)
        client = Client(baseline if other else url, BASELINE_KEY if other else KEY, limits)
        batch = context.batch if isinstance(context.batch, RequestBatch) else None
        return cls(context.cell, context.tokenizer, client, model, batch, logprobs=logprobs)

    @classmethod
    def check(cls, cell: CellRequest) -> None:
        args = dict(cell.decoder.args)
        for name, variable in (("url", KEY), ("baseline", BASELINE_KEY)):
            if name in args:
                check_address(str(args[name]))
                ApiKey(variable)
        HttpLimits(**{name: args[name] for name in ("timeout", "retries") if name in args})  # type: ignore[arg-type]

    def __init__(
        self,
        cell: Cell,
        tokenizer: Any,
        client: Client,
        model: str,
        batch: RequestBatch | None = None,
        *,
        logprobs: bool = False,
    ) -> None:
        self._cell, self._tokenizer, self._client = cell, tokenizer, client
        self._model, self._logprobs, self._batch = model, logprobs, batch
        self._noted = False  # that texts end early
        self._key = client.address, model, cell.chat

    def __call__(
        self,
        prompt: EnginePrompt,
        *,
        limits: Limits,
        warp: Callable[[Tensor], Tensor],
        noise: NoiseStream,
        stop: Stop,
    ) -> Iterator[Round]:
        """Continue `prompt`; all rounds come when the whole answer is there."""
        if limits.max_new_tokens == 0:
            return
        seed = int(noise.round(0).uniform(Purpose.PLAIN, 1)[0] * 2**31)
        batch = self._batch or RequestBatch(1)
        request = partial(self._answer, batch, prompt, limits.max_new_tokens, seed)
        try:
            if self._batch is None:
                (row,) = batch.run([partial(batch.answer, request)])
                (answer, acceptance), counted = row.result, batch.summary
                if acceptance is None and counted and not contradiction(counted, answer.tokens):
                    acceptance = counted
            else:
                answer, acceptance = batch.answer(request)
        except (AbortedError, ImpossibleAnswerError) as error:
            raise RefusedPromptError(str(error)) from error
        except RefusedError as error:
            if error.status in OF_PROMPT:
                raise RefusedPromptError(str(error)) from error
            raise
        with naming(prompt, self._batch):
            self._check(answer, limits.max_new_tokens)
        if answer.unsent:
            log.info(
                f"{answer.unsent} tokens of reasoning were not sent: their time is in that to the "
                "first token"
            )
        self.prompt_tokens = answer.prompt_tokens
        self.prefill_seconds, round_spans = spans(answer, acceptance, plain=self._cell.k == 0)
        yield from self._rounds(answer, round_spans)

    async def _answer(
        self, batch: RequestBatch, prompt: EnginePrompt, tokens: int, seed: int
    ) -> tuple[Answer, Acceptance | None]:
        """Return the answer in a row of the batch, and the counts of drafts it tells; None: none.

        The batch's first call connects, reads the server's counters, and has them read again at the
        batch's end. Options that the server refuses are not sent to it again. Raises
        RefusedPromptError for counts that cannot be true, and SpsError, with the prompt's name,
        without an answer.
        """

        async def opened() -> Server:
            client = await batch.enter(replace(self._client, sending=batch.in_flight))
            server = await self._connected(client, has_ids=prompt.ids is not None)
            before = counters(await client.get("/metrics"))
            if before:
                batch.at_end = partial(counted_since, before, client)
            return server

        server = await batch.once("server", opened)
        await server.client.get(OPENS)
        ask = self._ask(server, prompt, tokens, seed)
        with naming(prompt, self._batch):
            answer = await server.answer(ask)
        _servers[self._key] = replace(_servers[self._key], refused=server.refused)
        try:
            return answer, of_answer(answer)
        except RangeError as error:
            raise RefusedPromptError(
                f"an impossible answer ({self._client.address}: {error}). Update the server"
            ) from error

    async def _connected(self, client: Client, *, has_ids: bool) -> Server:
        """Return the server with this client; it is asked what it is once a process.

        With `has_ids` a chat's server is also asked whether it takes prompts as ids. DataError: an
        engine that this decoder does not speak to.
        """
        if (server := _servers.get(self._key)) is None:
            server = await detect_engine(client, self._model or None, chat=self._cell.chat)
            if self._cell.chat and has_ids:
                await probe_ids(server)
            _servers[self._key] = server
        if self.kinds is not None and server.kind not in self.kinds:
            raise DataError(
                f"an engine of another kind ({client.address}: {server.name}): expected "
                f"{', '.join(self.kinds)}. Use `decoder` openai"
            )
        return replace(server, client=client)

    def _ask(self, server: Server, prompt: EnginePrompt, tokens: int, seed: int) -> Ask:
        """Return the request for `tokens` tokens, with the cell's sampling, constraint and ends.

        The prompt goes as ids if the server takes them; DataError: no form that it takes.
        """
        cell, usual = self._cell, WarpSettings()
        kind = constraint_kind(cell)
        warp = {n: getattr(cell, n) for n in WARP if getattr(cell, n) != getattr(usual, n)}
        warp.pop("temperature", None)
        content: Any = prompt.content
        if prompt.ids is not None and server.takes_ids:
            content = tuple(prompt.ids)
        chat = content is prompt.content and not isinstance(content, str)
        if not content or (chat and server.kind is Kind.SGLANG):
            raise DataError(
                f"a prompt as {'messages' if chat else 'token ids'} ({server.client.address}, "
                f"{server.name}): expected an engine that takes it. Leave `chat` out, or name the "
                "model here with `target` for its tokenizer"
            )
        return Ask(
            tuple(content) if chat else content,
            tokens,
            cell.temperature,
            seed,
            top=int(self._logprobs and server.top > 0),
            stream=True,
            chat=chat,
            warp=warp,
            stop=cell.stop,
            ignore_eos=cell.ignore_eos,
            constraint=None if kind is None else (kind, getattr(cell, kind)),
            processors=as_requested(cell.processors, self._tokenizer),
        )

    def _check(self, answer: Answer, most: int) -> None:
        """Check that an answer's tokens, ids and text agree; warn once of texts that end early.

        Raises DataError, which ends the run, for no number of tokens or ids of another text, and
        RefusedPromptError for another contradiction, an unknown id, or the API key in the text.
        """
        where, hide = self._client.address, self._client.hide
        ids = answer.ids
        if answer.count is None and ids is None and not answer.keys:
            raise DataError(
                f"no number of tokens ({where}): expected usage or token ids in the stream. Add "
                "logprobs=true to the decoder, which lists them"
            )
        if wrong := answer.misstatement() or answer.miscount(most + 1):
            raise RefusedPromptError(
                f"an answer that does not balance ({where}: it {wrong}): expected one whose tokens "
                "are those of its text. Update the server"
            )
        if answer.is_cut_short(most) and not self._noted:
            self._noted = True
            log.warning(
                f"texts end before the {most} tokens asked for ({where}: finish_reason "
                f"{cut(answer.finish)}), as by a context of the server's own"
            )
        if ids is None or self._tokenizer is None:
            return
        if max(ids, default=0) >= len(self._tokenizer):
            raise RefusedPromptError(
                f"token {max(ids)} ({where}): expected one of the {len(self._tokenizer)} of "
                "`target`. Is it the model that is served?"
            )
        decoded = self._tokenizer.decode(ids, skip_special_tokens=True)
        if hide(decoded) != decoded:
            raise RefusedPromptError(f"the API key in an answer ({where}): expected none in a text")
        if not _holds(decoded, answer):
            raise DataError(
                f"ids that spell {decoded.strip()[:40]!r} next to the text {answer.text[:40]!r} "
                f"({where}): expected one text. Is `target` the model that is served?"
            )

    def _rounds(self, answer: Answer, round_spans: list[PassTokens]) -> Iterator[Round]:
        """Yield a round for each span, in order, with its ids if there are any.

        The last has the finish, and the text where no tokenizer here decodes ids. Without spans it
        is the only round, and has no tokens.
        """
        usual = "eos" if answer.stopped_by is None else "stop"
        reason = (answer.finish or "length").lower()
        finish: Any = next((end for end in CUT if reason in ENDS[end]), usual)
        decodes = answer.ids is not None and self._tokenizer is not None
        ids = iter(answer.ids or ())
        for number, span in enumerate(round_spans or [PassTokens(0, 0.0, passes=0)]):
            last = number >= len(round_spans) - 1
            yield Round(
                span.drafted,
                span.tested,
                span.accepted,
                list(islice(ids, span.emitted)),
                None,
                span.seconds,
                finish if last else None,
                passes=span.passes,
                text=None if decodes else answer.text * last,
                size=span.emitted,
            )


class SglangDecoder(OpenAiDecoder):
    """A running SGLang server makes the text, by its own /generate.

    Its gauges at /metrics show the latest value only, so they are not read.
    """

    kinds: ClassVar[frozenset[Kind] | None] = frozenset((Kind.SGLANG,))


def _holds(decoded: str, answer: Answer) -> bool:
    """Return whether the text of an answer's ids begins with what the answer says.

    With reasoning, which comes without the marks around it: whether both parts are there in order.
    """
    parts = [part.strip().rstrip("\ufffd") for part in (answer.reasoning, answer.text)]
    if not answer.reasoning:
        return decoded.strip().startswith(parts[1])
    return parts[1] in decoded.partition(parts[0])[2] if parts[0] in decoded else False


async def counted_since(before: Mapping[str, float], client: Client) -> Acceptance | None:
    """Return what a server has counted since `before`; None: no rounds, or attempts that failed."""
    if client.failures.keys() - {"HTTP 429"}:
        return None
    counted = page_delta(before, counters(await client.get("/metrics")))
    return counted if counted and counted.rounds else None


@contextmanager
def naming(prompt: EnginePrompt, batch: RequestBatch | None) -> Iterator[None]:
    """Name the prompt in errors that end the run, not in those of one prompt; advise on `batch`."""
    try:
        yield
    except (AbortedError, ImpossibleAnswerError, RefusedPromptError):
        raise
    except SpsError as error:
        if prompt.name and getattr(error, "status", None) not in OF_PROMPT:
            fewer = isinstance(error, UnavailableError) and batch is not None
            error.args = (f"prompt {prompt.name}: {error}" + ", or lower `batch`" * fewer,)
        raise
