"""Rows of servers: does a token scored in a block get the log-probabilities that it has alone.

A plain server makes greedy texts, a token a pass, and states the likeliest tokens at each of them.
The same tokens are scored again in one pass, as a prompt (vLLM's `prompt_logprobs`, SGLang's
logprobs of its input), and in blocks of K + 1 by a second server that drafts, as far as its texts
are the same. Rounding is what rows of one text differ by when it is made alone and among others:
products of other sizes, but no other law. Rows of neighbouring tokens are the control.
"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import chain, pairwise
from statistics import pstdev

from spsbench.audit.pass_report import (
    BASELINE,
    SERVER,
    Comparison,
    Difference,
    PassReport,
)
from spsbench.errors import DataError
from spsbench.messages import Say, lines_to
from spsbench.serving.acceptance import of_answers
from spsbench.serving.api_key import BASELINE_KEY, KEY
from spsbench.serving.engines import Answer, Ask, Server, Stated, connect
from spsbench.serving.fields import cut
from spsbench.serving.http import Client, Limits
from spsbench.settings.commands import ServedRows

OPENINGS = (
    "The ferry to the island leaves at",
    "def mean(values):\n    ",
    "In the year 1848 the",
    "Water boils at a lower temperature on a mountain, because",
    "SELECT name, COUNT(*) FROM",
    "My grandmother always said that",
)
TOKENS = 24  # of a text
TIMES = 5.0  # the rounding in company, that other products may have
LOWEST = -1e3  # nats; engines write as much, or minus infinity, for what is masked

Prompt = str | tuple[int, ...]


def verify_served_rows(
    url: str, options: ServedRows | None = None, *, say: Say | None = None
) -> PassReport:
    """Compare the rows of a server in blocks with those of single tokens.

    Args:
        url: address of the server.
        options: a second server without speculation, names of models, and a timeout.
        say: receives each message for the user; None: messages go to `logging` only.

    Raises:
        SpsError: no server, or one that states no log-probabilities.
    """
    with lines_to(say):
        return asyncio.run(_compared(url, options or ServedRows()))


async def _compared(url: str, options: ServedRows) -> PassReport:
    async with AsyncExitStack() as stack:

        async def connected(address: str, key: str, model: str | None) -> Server:
            limits = Limits(timeout=options.timeout, retries=options.retries)
            client = await stack.enter_async_context(Client(address, key, limits))
            server = await connect(client, model)
            if not server.top:
                raise DataError(
                    f"no log-probabilities ({client.address}, {server.name}): expected a server "
                    "that states those of its likeliest tokens. Start it with them"
                )
            return server

        server = await connected(url, KEY, options.model)
        name = f"{server.name}, {cut(server.model)} ({server.client.address})"
        if options.baseline is None:
            if not server.rescores:
                raise DataError(
                    f"no log-probabilities of a prompt ({server.client.address}, {server.name}): "
                    "expected vLLM or SGLang, or a plain server of the same model beside it. Name "
                    "one with `baseline`"
                )
            return await compare_rows(name, server, server, options.rounding)
        plain = await connected(options.baseline, BASELINE_KEY, options.baseline_model)
        return await compare_rows(name, server, plain, options.rounding)


async def compare_rows(name: str, server: Server, plain: Server, least: float) -> PassReport:
    """Compare the rows of a server, and of a plain one beside it, with those of single tokens.

    Args:
        name: of what is compared.
        server: may draft.
        plain: makes a token a pass; the same one where there is no other.
        least: nats that rounding explains whatever is measured.

    Raises:
        SpsError: a server that fails, or texts of which no token is common.
    """
    top = min(server.top, plain.top)
    prompts = await _prompts(server, plain)

    def ask(prompt: Prompt) -> Ask:
        return Ask(prompt, TOKENS, 0.0, top=top)

    alone = [await plain.answer(ask(prompt)) for prompt in prompts]
    company = await asyncio.gather(*(plain.answer(ask(prompt)) for prompt in prompts))
    rounding = gap_of(_common(alone, company), top)
    explained = max(TIMES * rounding, least)
    stated = [text.stated for text in alone]
    if not any(lp > LOWEST for row in chain(*stated) for _, lp in row[1:]):
        raise DataError(
            f"log-probabilities of one token alone ({plain.client.address}): expected those before "
            "the temperature. Start it with raw ones"
        )
    moved = gap_of([pair for rows in stated for pair in pairwise(rows)], top)
    spread = pstdev([lp for row in chain(*stated) for _, lp in row if lp > LOWEST])
    comparisons = []

    def compare(way: str, size: int, pairs: Sequence[tuple[Stated, Stated]]) -> None:
        if not pairs:
            raise DataError(
                f"no common tokens ({server.client.address}, {plain.client.address}): expected "
                "greedy texts of one model. Check that both serve it, or name it with `model`"
            )
        gap, changed = gap_of(pairs, top), sum(flips(*pair) for pair in pairs)
        kind = Difference.ROUNDING if gap <= explained else Difference.TWO_LAWS
        kind = kind if gap else Difference.NONE
        comparisons.append(Comparison(way, "", size, gap, spread, changed, len(pairs), kind))

    if server is not plain:
        texts = [await server.answer(ask(prompt)) for prompt in prompts]
        compare(f"{SERVER}, its own text", block_of(texts), _common(alone, texts))
    readers = {SERVER: server} if server is plain else {SERVER: server, BASELINE: plain}
    for owner, reader in readers.items():
        if reader.rescores and plain.gives_ids:
            compare(f"{owner}, as a prompt", TOKENS, await _rescored(reader, prompts, alone))
    return PassReport(name, tuple(comparisons), moved=moved, rounding=rounding, explained=explained)


async def _prompts(server: Server, plain: Server) -> list[Prompt]:
    """Return prompts: ids that go on from the openings where both servers take ids."""
    if not (server.takes_ids and plain.takes_ids and plain.gives_ids):
        return list(OPENINGS)
    begun = [await plain.answer(Ask(opening, TOKENS, 0.0)) for opening in OPENINGS]
    return [tuple(text.ids or ()) for text in begun if text.ids]


async def _rescored(
    server: Server, prompts: Sequence[Prompt], texts: Sequence[Answer]
) -> list[tuple[Stated, Stated]]:
    """Return rows of texts as they were made, and as a server scores them in one pass."""
    pairs: list[tuple[Stated, Stated]] = []
    for prompt, text in zip(prompts, texts, strict=True):
        ids = text.prompt_ids if isinstance(prompt, str) else prompt
        if ids and text.ids:
            rows = await server.rescore(ids, text.ids)
            pairs += zip(text.stated, rows, strict=True)
    return pairs


def _common(texts: Sequence[Answer], others: Sequence[Answer]) -> list[tuple[Stated, Stated]]:
    """Return the rows of both at each token whose past is the same."""
    pairs: list[tuple[Stated, Stated]] = []
    for one, other in zip(texts, others, strict=True):
        rows = zip(one.keys, other.keys, one.stated, other.stated, strict=False)
        for key, other_key, stated, other_stated in rows:
            pairs.append((stated, other_stated))
            if key != other_key:
                break
    return pairs


def gap_of(pairs: Sequence[tuple[Stated, Stated]], top: int) -> float:
    """Return the largest difference of log-probabilities in nats, by pairs of rows; 0 for none.

    A token that only one row lists is at most as likely in the other as the last of its `top`.
    """
    return max((_gap(one, other, top) for one, other in pairs), default=0.0)


def _gap(one: Stated, other: Stated, top: int) -> float:
    gap, rows = 0.0, (dict(reversed(one)), dict(reversed(other)))  # of one key the likeliest
    for (lp_of, lp_in), listed in zip((rows, rows[::-1]), (other, one), strict=True):
        for key, lp in lp_of.items():
            if key in lp_in:
                gap = max(gap, abs(max(lp, LOWEST) - max(lp_in[key], LOWEST)))
            elif len(listed) >= top:
                gap = max(gap, lp - listed[top - 1][1])
    return gap


def flips(one: Stated, other: Stated) -> bool:
    """Return whether the likeliest token of one row is not so in the other."""
    if not one or not other:
        return False
    return dict(reversed(other)).get(one[0][0], -math.inf) < other[0][1]


def block_of(texts: Sequence[Answer]) -> int:
    """Return K + 1 of a server's texts, by its own counts; 0: it gives none."""
    acceptance = of_answers(texts)
    if acceptance is None or not acceptance.drafted or not acceptance.rounds:
        return 0
    return math.ceil(acceptance.drafted / acceptance.rounds) + 1
