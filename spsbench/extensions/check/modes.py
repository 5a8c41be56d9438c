"""Modes in which greedy text must not change: parts of a check that are asked by name.

`mixed`: greedy texts that share their batches with sampled ones equal those of greedy batches.
`json`: greedy answers under schemas are the reference's. `cache`: the second answer to a long
prompt equals the first, which a prefix cache must not change. `logprobs` and `agents` have others.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from spsbench.extensions.check.agents import check_streams, check_tools
from spsbench.extensions.check.greedy import ServerGreedy, compare_best, compare_served
from spsbench.extensions.check.journal import REFUSED
from spsbench.extensions.check.logprobs import check_logprobs
from spsbench.extensions.check.options import TABLE
from spsbench.extensions.check.texts import BASE, OWN, CheckTexts
from spsbench.serving.acceptance import samples
from spsbench.serving.engines import Answer, Ask
from spsbench.serving.http import RefusedError
from spsbench.untrusted import FieldError, parse_json

LONG = 1600  # characters of a long prompt: several blocks of a prefix cache
LONG_PROMPTS = 4
JSON_TOKENS = 192  # at most in an answer under a schema
CACHED = ("prefix_cache_hits", "prefix_cache_hits_total")  # how names of counters end
SCHEMAS: Mapping[str, tuple[Mapping[str, Any], str]] = {  # and the prompts that ask for them
    name: (json.loads(row["schema"]), row["prompt"]) for name, row in TABLE["schemas"].items()
}
JSON_PROMPTS: tuple[tuple[str, str], ...] = tuple(  # name of the schema, and prompt
    (name, prompt.format(f"a {who} from {where}"))
    for (who, where), (name, (_, prompt)) in product(
        product(TABLE["who"], TABLE["where"]), SCHEMAS.items()
    )
)


async def check_modes(
    texts: CheckTexts, greedy: Sequence[Answer], parts: Set[str]
) -> tuple[dict[str, ServerGreedy], list[str]]:
    """Run the modes among `parts`; return their results by name, and the names of refused ones.

    A refusal is remarked, and kept in the journal if the server gave it. `greedy` are the greedy
    texts in batches of their own, with which mixed ones are compared.
    """
    journal = texts.journal
    results: dict[str, ServerGreedy] = {}
    refused: list[str] = []
    modes: dict[str, Callable[[CheckTexts], Awaitable[ServerGreedy]]] = {
        "json": check_json,
        "mixed": partial(check_mixed, greedy=greedy),
        "cache": check_cache,
        "logprobs": check_logprobs,
        "tools": check_tools,
        "stream": check_streams,
    }
    for part, mode in modes.items():
        if part not in parts:
            continue
        try:
            if not journal.asks and f"{REFUSED}{part}" in journal:
                raise RefusedError(journal.read(f"{REFUSED}{part}", str), 0, "")
            results[part] = await mode(texts)
        except* RefusedError as group:
            reason = str(error := group.exceptions[0])
            if isinstance(error, RefusedError) and error.status:
                reason = f"HTTP {error.status}: {error.reason}"
                journal.keep(f"{REFUSED}{part}", reason)
            refused.append(part)
            texts.remark(f"{part}: refused ({reason})")
    return results, refused


async def check_json(texts: CheckTexts) -> ServerGreedy:
    """Ask for JSON under schemas; compare with the baseline, else with what the server states.

    All servers are asked; the result compares the texts of OWN, and its `reference` tells how
    many answers of each server are JSON. RefusedError, in a group: a server takes no schemas.
    """
    answers, shares = {}, []
    for name, server in texts.servers.items():
        asks = [
            Ask(
                *(prompt, JSON_TOKENS, 0.0, texts.plan.seed + number, server.top),
                chat=True,
                ignore_eos=False,
                constraint=("json_schema", json.dumps(SCHEMAS[schema][0])),
            )
            for number, (schema, prompt) in enumerate(JSON_PROMPTS)
        ]
        keyed = [(f"json/0/{number}", ask) for number, ask in enumerate(asks)]
        answers[name] = await texts.answers_to(name, keyed)
        count = sum(map(is_json, answers[name]))
        shares.append(f"{name}: {count} of {len(asks)} answers are JSON")
    names = [f"{schema} {number}" for number, (schema, _) in enumerate(JSON_PROMPTS)]
    result = compare_best(answers[OWN], answers.get(BASE), names)
    result.reference += f" ({'; '.join(shares)})"
    return result


async def check_mixed(texts: CheckTexts, greedy: Sequence[Answer]) -> ServerGreedy:
    """Compare greedy texts, each asked next to a sampled one, with those of greedy batches."""
    asks = []
    for i in range(len(greedy)):
        sampled = replace(texts.ask(OWN, i, 1.0), warp=texts.plan.cut)
        asks += [(f"mixed/{i}", texts.ask(OWN, i, 0.0)), (f"beside/{i}", sampled)]
    mixed = (await texts.answers_to(OWN, asks))[::2]
    return compare_served("greedy texts in batches of their own", greedy, mixed)


async def check_cache(texts: CheckTexts) -> ServerGreedy:
    """Ask up to `LONG_PROMPTS` long prompts twice, and compare; remark cached tokens if counted."""
    prompts = texts.plan.texts
    count = min(LONG_PROMPTS, len(prompts))
    asks = [texts.ask(OWN, i, 0.0, long_prompt(prompts, i)) for i in range(count)]
    before = count_cached(await texts.metrics())
    first, again = [
        await texts.answers_to(OWN, [(f"{kind}/{i}", ask) for i, ask in enumerate(asks)])
        for kind in ("first", "again")
    ]
    after = count_cached(await texts.metrics())
    if before is not None and after is not None:
        tokens = f"{after - before:,.0f} prompt tokens"
        texts.remark(f"cache: {tokens} came from a prefix cache, by the server's count")
    return compare_served("the first answers to the same prompts", first, again)


def long_prompt(prompts: Sequence[str], index: int) -> str:
    """Join prompt `index`, of the first 4 in rotation, and next ones, to at least `LONG` in all."""
    at = index % min(LONG_PROMPTS, len(prompts))
    text = prompts[at]
    while len(text) < LONG:
        at += 1
        text += f"\n\n{prompts[at % len(prompts)]}"
    return text


def count_cached(page: Any) -> float | None:
    """Return the prompt tokens that came from a cache, by a /metrics page; None without a count."""
    counts = [number for name, _, number in samples(page) if name.endswith(CACHED)]
    return sum(counts) if counts else None


def is_json(answer: Answer) -> bool:
    """Return whether an answer is JSON; one that was cut is none."""
    try:
        parse_json(answer.text.encode())
    except (FieldError, UnicodeEncodeError):
        return False
    return True
