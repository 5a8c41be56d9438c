"""The loop: draft, score, verify, commit. Every drafter, verifier, schedule and engine runs in it.

Algorithm 2 of Chen et al. 2023 with a cache and interchangeable parts. K = 0 is auto-regressive
sampling (Algorithm 1) in the same lines, so the baseline is counted and timed by the same code.
The loop yields: streaming, progress, timing of parts and tracing are its consumers' affair.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from spsbench.hardware.contention import processor_seconds
from spsbench.loop.constraint import Constraint
from spsbench.loop.guards import (
    blame,
    check_ruling,
    check_usable,
    check_verdict,
    choice_of,
    go_on_of,
    is_foreign,
    relaxing_of,
)
from spsbench.loop.noise import on_device
from spsbench.loop.processors import TextProcessors
from spsbench.loop.sampling import host_numbers, send
from spsbench.loop.text import PromptError, to_token_ids
from spsbench.loop.timing import Stopwatch
from spsbench.loop.types import (
    LM,
    Context,
    Draft,
    Drafter,
    Finish,
    Limits,
    NoiseStream,
    Round,
    Schedule,
    Step,
    Stop,
    Verdict,
    Verifier,
)
from spsbench.settings.processors import Processors
from spsbench.settings.records import DraftProbs


class PairingError(ValueError):
    """A drafter and a verifier whose combined output would silently differ from the target's."""


class NonFiniteError(ArithmeticError):
    """A model returned logits that are NaN or infinite; the generation cannot continue."""


def never(tokens: Sequence[int]) -> bool:
    """Report that no stop string was found: the `Stop` of a generation without stop strings."""
    return False


@torch.inference_mode()
def decode(
    prompt: Sequence[int],
    *,
    target: LM,
    drafter: Drafter,
    verifier: Verifier,
    schedule: Schedule,
    warp: Callable[[Tensor], Tensor],
    noise: NoiseStream,
    limits: Limits,
    stop: Stop = never,
    constraint: Constraint | None = None,
    processors: Processors | None = None,
    probs: bool = False,
    likeliest: int = 0,
) -> Iterator[Round]:
    """Continue `prompt` and yield one `Round` for each target pass; `finish` of the last says why.

    The output is distributed as the target's own under `processors` and `warp`, over the tokens
    that `constraint` allows, whenever `verifier` is exact. The target's cache is emptied first, so
    that one session serves prompt after prompt; the prefill, all tokens but the last, runs before
    the first round and is in no round's seconds. Drafts shrink to the tokens left less one, the
    drafter's `limit` and the target's context. Nothing is yielded where `limits` or the context
    leave no token to make. With `probs` each round brings the probabilities of its draft, for
    audits, and of the `likeliest` tokens after each row. `constraint` counts what is emitted.

    Raises:
        PairingError: the verifier refuses the drafter.
        PlugInError: a part that is not ours failed, or returned what does not fit; names it.
        NonFiniteError: NaN or +inf logits; says which model and which position.
        PromptError: the prompt is empty, no ids, or longer than the target's context.
        DeadEndError: the constraint allows no token after the text, or the processors ban all.
    """
    with blame("drafters", drafter):
        drawn, tree = drafter.drawn, drafter.tree
    with blame("verifiers", verifier):
        reason = verifier.refuses(drawn, tree)
    if reason:
        raise PairingError(reason)
    x = to_token_ids(prompt)
    start, budget = len(x), token_budget(len(x), limits, target.limit)
    if budget == 0:
        return
    foreign_drafter, foreign_rule = is_foreign(drafter), is_foreign(verifier)
    go_on, relax = go_on_of(schedule), relaxing_of(verifier, warp)
    if constraint is not None:
        constraint.begin(start, budget, target.vocab_size)
    processed = None if processors is None else TextProcessors(processors, start)

    target.commit(0)
    prefill = target.append(torch.tensor(x[:-1], dtype=torch.int64), keep=0)
    with blame("drafters", drafter):
        drafter.begin(x[:], prefill)  # from here on the newest token is always pending
    device = prefill.logits.device
    drafting, scoring = Stopwatch(device), Stopwatch(device)

    drafts_end = start + budget - 1  # a round itself adds one more token
    if drafter.limit is not None:
        drafts_end = min(drafts_end, drafter.limit)
    history: list[Round] = []
    last: Step | None = None
    finish: Finish | None = None
    while finish is None:
        began, worked = time.perf_counter(), processor_seconds()
        fresh = on_device(noise.round(len(history)), device)

        left = max(0, drafts_end - len(x))
        k, nodes, rule_k = choice_of(schedule, history)
        k, rule_k = min(k, left), None if rule_k is None else min(rule_k, left)
        if target.limit is not None:  # a tree's nodes are rows of the cache
            nodes = min(target.limit - len(x), target.limit if nodes is None else nodes)
        context = Context(x, warp, last, nodes, rule_k, constraint, processed)
        with drafting.running(), blame("drafters", drafter):
            draft = drafter.draft(context, k, fresh, go_on)
        if foreign_drafter:
            check_usable(draft, drafter, k, rule_k, target.vocab_size)
        draft = replace(draft.within(nodes), drawn=drawn)
        parents, draft = draft.parents, draft.to(device)  # a tree's shape is needed on the host

        with scoring.running():
            fed = torch.cat([send(torch.tensor(x[-1:]), device), draft.tokens])  # [N + 1]
            scores = target.append(fed, keep=len(fed), parents=parents)
            if constraint is not None:
                scores = constraint.masked(scores, x, draft)
            if processed is not None:
                scores = processed.scores(scores, x, draft)

        offered = draft.offered
        logits = scores.logits[: len(offered.tokens) + 1]
        q = warp(logits)  # [N + 1, V]
        with blame("verifiers", verifier):
            verdict = verifier(offered, q if relax is None else relax(offered, q, logits), fresh)
        if foreign_rule:
            check_verdict(verdict, verifier, len(offered.tokens))
        # the one host read
        path, tokens, tested, overlap = fetch_verdict(offered, q, verdict, len(x))
        if foreign_rule:
            check_ruling(path, tokens[-1], offered, verifier, q.shape[-1])

        tokens, finish = cut_block(tokens, x[start:], limits, budget, stop)
        kept = path[: len(tokens) - 1]  # the last token is pending again
        if constraint is not None:
            constraint.count(kept)
        if processed is not None:
            processed.check(kept, x)
        with scoring.running():
            if offered.parents is None:
                target.commit(len(x) + len(kept))
            else:
                target.commit(len(x), kept)

        x += tokens
        last = Step(draft, scores, verdict, kept)
        done = Round(
            drafted=len(draft.tokens),
            tested=tested,
            accepted=len(path),
            tokens=tokens,
            overlap=overlap,
            seconds=time.perf_counter() - began,
            finish=finish,
            probs=draft_probs(offered, q, likeliest) if probs else None,
            tree=None if offered.parents is None else offered.tree.walked(path),
            processor_seconds=processor_seconds() - worked,
            experts=scores.experts,
            by_rule=draft.by_rule,
            draft_seconds=drafting.lap(),
            target_seconds=scoring.lap(),
        )
        history.append(done)
        yield done


def token_budget(prompt: int, limits: Limits, context: int | None) -> int:
    """Return `max_new_tokens`, or what `context` leaves if less; PromptError: that is below 0."""
    if context is None:
        return limits.max_new_tokens
    if prompt > context:
        raise PromptError(
            f"the prompt has {prompt} tokens: the target's context holds {context}. Shorten it"
        )
    return min(limits.max_new_tokens, context - prompt)


def fetch_verdict(
    draft: Draft, q: Tensor, verdict: Verdict, position: int
) -> tuple[list[int], list[int], int, float | None]:
    """Fetch a verdict, its overlap and the sums of `q` and the draft's probs in one transfer.

    Returns the accepted nodes from the root on; their tokens, then the final token; the number of
    slots tested (-1: the rule tests none); the sum over tested slots of sum_x min(p, q), None for a
    tree or a rule that tests no slots. Raises NonFiniteError, with the model and `position`, where
    a sum is NaN or infinite.
    """
    p_mass = q.new_zeros(()) if draft.probs is None else draft.probs.sum()
    overlap = overlap_of(draft, q, verdict.tested)
    scalars = [verdict.token, verdict.tested, overlap, q.sum(), p_mass]
    nodes, drafted, *host = fetch_numbers([verdict.path, draft.tokens, *scalars])

    path = [int(node) for node in nodes if node >= 0]
    (token,), (tested,), (shared,), *masses = host
    for (mass,), model in zip(masses, ("target", "draft model"), strict=True):
        if mass - mass != 0:  # NaN: the warp turns a row of unusable logits into one
            raise NonFiniteError(f"non-finite logits from the {model} at position {position}")
    tokens = [int(drafted[min(node, len(drafted) - 1)]) for node in path] + [int(token)]
    applies = tested >= 0 and draft.parents is None
    return path, tokens, int(tested), shared if applies else None


def fetch_numbers(parts: Sequence[Tensor]) -> list[list[float]]:
    """Return each tensor's numbers, flattened; from a device by one transfer, as doubles."""
    if all(part.device.type == "cpu" for part in parts):
        return [part.flatten().tolist() for part in parts]
    host = torch.cat([part.flatten().double() for part in parts]).cpu()
    return [part.tolist() for part in host.split_with_sizes([part.numel() for part in parts])]


def draft_probs(draft: Draft, q: Tensor, likeliest: int) -> DraftProbs:
    """Return each drafted token with its probability by the draft and by `q` [N+1, V], for audits.

    The former is 1 for a deterministic draft; parents are None for a chain. With `likeliest` above
    0 also, for each of the N + 1 rows of `q`, so many of its likeliest tokens (V at most): id,
    probability, id, probability, the likeliest first.
    """
    at = draft.tokens[:, None]
    rows = q[:-1] if draft.parents is None else q[send(draft.parents + 1, q.device)]
    target_probs = rows.gather(1, at)
    p = torch.ones_like(target_probs) if draft.probs is None else draft.probs.gather(1, at)
    parents = None if draft.parents is None else draft.parents.tolist()
    p, target_probs = p[:, 0].double(), target_probs[:, 0].double()
    recorded = DraftProbs(draft.tokens.tolist(), p.tolist(), target_probs.tolist(), parents)
    if not likeliest:
        return recorded
    best = q.topk(min(likeliest, q.shape[-1]))
    pairs = torch.stack([best.indices, best.indices], -1).flatten(1).tolist()
    for row, probs in zip(pairs, best.values.double().tolist(), strict=True):
        row[1::2] = probs
    return recorded._replace(likeliest=pairs)


def overlap_of(draft: Draft, q: Tensor, tested: Tensor) -> Tensor:
    """Return [], the sum over the `tested` [] slots of a chain of sum_x min(p, q); 0 for a tree.

    A slot's term is the probability that its token is accepted; that of a deterministic token is
    the target's probability of it. On a CPU only the tested rows are read.
    """
    if draft.parents is not None:  # several children of one node have no overlap each
        return q.new_zeros(())
    count = host_numbers(tested[None])
    n = len(draft.tokens) if count is None else max(0, int(count[0]))
    if draft.probs is None:
        shares = q[:n].gather(1, draft.tokens[:n, None])[:, 0]
    else:
        shares = torch.minimum(q[:n], draft.probs[:n]).sum(-1)
    slots = torch.arange(n, device=q.device)
    return shares.sum() if count is not None else (shares * (slots < tested)).sum()


def cut_block(
    block: list[int], output: list[int], limits: Limits, budget: int, stop: Stop
) -> tuple[list[int], Finish | None]:
    """Return `block` up to the token that ends the text, and the reason; without one, all and None.

    A token ends the text where it is an EOS id ("eos"), where `stop` of `output` and the block up
    to it is true ("stop"), and where it is number `budget` of the output: "length", or "context"
    where `limits` would allow more.
    """
    for i, token in enumerate(block, start=1):
        if token in limits.eos:
            return block[:i], "eos"
        if stop(output + block[:i]):
            return block[:i], "stop"
        if len(output) + i == budget:
            return block[:i], "length" if budget == limits.max_new_tokens else "context"
    return block, None
