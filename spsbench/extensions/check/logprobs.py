"""Stated log-probabilities against those of the weights: a part of a check, for each server.

Each token that a server emits at temperature 1 states its log-probability, and so does each token
of a prompt where a server scores prompts; those are scored while other texts are generated. The
server is with speculation, the baseline without.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

import msgspec
import numpy as np

from spsbench.audit.statistical.betting import Floats, log_probs
from spsbench.audit.statistical.comparison import Compared, GreedyKind
from spsbench.extensions.check.greedy import ServerGreedy
from spsbench.extensions.check.texts import CheckTexts
from spsbench.extensions.check.weights import LocalModel
from spsbench.serving.engines import Answer, Stated
from spsbench.serving.http import RefusedError
from spsbench.serving.wire import UNLISTED

TEXTS = 8
NATS = 0.2  # by which half precision may differ from float32
LEAST = -9.0  # less likely tokens, which rounding moves further, are not compared
FEW = 0.02  # share of tokens that may differ by more


async def check_logprobs(texts: CheckTexts) -> ServerGreedy:
    """Compare what each server states of its answers, and of prompts, with the weights.

    Returns one comparison for each server and kind of text, IDENTICAL or BUG; all are remarked.
    RefusedError: there are no weights, or a server states no log-probabilities at all.
    """
    weights = texts.weights
    if weights is None:
        raise RefusedError("expected `weights`, to compare with", 0, "")
    faults: dict[str, str] = {}  # by what is compared; empty: equal
    for name, server in texts.servers.items():
        if not server.top:
            raise RefusedError(f"the {name} states no log-probabilities", 0, "")
        asks = [texts.ask(name, i, 1.0) for i in range(TEXTS)]
        prompts = [weights.encode(texts.prompt(i)) for i in range(TEXTS)]
        jobs = [
            partial(
                texts.journal.get,
                f"{name}/logprobs of a prompt/{i}",
                partial(msgspec.convert, type=list[Stated]),
                partial(server.rescore, prompt[:1], prompt[1:]),
            )
            for i, prompt in enumerate(prompts)
            if server.rescores and server.takes_ids and not texts.plan.chat and len(prompt) > 1
        ]
        async with asyncio.TaskGroup() as group:
            keyed = [(f"logprobs/{i}", ask) for i, ask in enumerate(asks)]
            answering = group.create_task(texts.answers_to(name, keyed))
            scoring = group.create_task(texts.wait_for(jobs))
        scored, stated, accepted = [], [], []
        for i, answer in enumerate(answering.result()):
            prompt, ids = texts.prompt_ids(texts.prompt(i), answer), weights.tokens(answer)
            scored.append(chances(weights, prompt, ids))
            stated += [*answer.own, *[-np.inf] * len(ids)][: len(ids)]
            accepted += accepted_in(answer, len(ids))
        apart = how_apart(np.array(stated), np.concatenate(scored), np.array(accepted))
        faults[f"{name}, answers"] = apart
        rows = scoring.result()
        if not rows:
            texts.remark(f"logprobs: {name}: those of prompts are not known")
            continue
        prompts = [prompt for prompt in prompts if len(prompt) > 1]
        listed = [
            dict(row).get(f"#{x}", -np.inf)
            for prompt, kept in zip(prompts, rows, strict=True)
            for x, row in zip(prompt[1:], kept, strict=True)
        ]
        due = np.concatenate([chances(weights, p[:1], p[1:]) for p in prompts])
        faults[f"{name}, prompts"] = how_apart(np.array(listed), due, np.array([]))
    for name, line in faults.items():
        texts.remark(f"logprobs: {name}: {line or 'equal'}")
    kinds = [GreedyKind.BUG if line else GreedyKind.IDENTICAL for line in faults.values()]
    return ServerGreedy("the weights", list(map(Compared, faults, kinds)))


def chances(weights: LocalModel, prompt: Sequence[int], ids: Sequence[int]) -> Floats:
    """Return [n] the log-probability by the weights of each of `ids` after those before it."""
    return np.asarray(log_probs(weights.score(prompt, ids))[range(len(ids)), ids])


def accepted_in(answer: Answer, n: int) -> list[bool]:
    """Return [n] if each token is an accepted draft, False before the first step; []: unknown."""
    vllm = answer.counts.vllm
    steps = None if vllm is None else vllm.per_step_accepted
    if steps is None:
        return []
    flags = [slot < accepted for accepted in steps for slot in range(accepted + 1)]
    return [*[False] * (n - len(flags)), *flags][:n]  # the prompt's own pass drafts nothing


def how_apart(stated: Floats, scored: Floats, accepted: Floats) -> str:
    """Name how stated log-probabilities [n] differ from scored ones; "" if all but a few are equal.

    Tokens of which none is stated (-9999, -inf) are counted apart; those unlikely by the weights
    are not compared. `accepted`: [n] whether each is an accepted draft; [0]: not known.
    """
    n, missing = len(stated), int((stated <= UNLISTED).sum())
    if missing > FEW * n:
        return f"missing at {missing} of {n} tokens"
    likely = (scored > LEAST) & (stated > UNLISTED)
    apart = np.where(likely, stated - scored, 0.0)
    off = abs(apart) > NATS
    if off.sum() <= FEW * n:
        return ""
    shift = float(np.median(apart[likely]))
    if (abs(apart[likely] - shift) > NATS).sum() <= FEW * n:
        return f"off by a constant of {shift:+.2g} nats"
    zeros = f", {int((off & (stated == 0)).sum())} of them stated as 0.0"
    if len(accepted) == n and off[~accepted.astype(bool)].sum() <= FEW * n:
        return f"off at accepted tokens alone: {off.sum()} of {int(accepted.sum())}{zeros}"
    return f"off at {off.sum()} of {n} tokens{zeros}"
