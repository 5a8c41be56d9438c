"""Checks around plug-ins: errors name the plug-in, and returned values must fit the loop.

Shapes and dtypes are known on the host. Values are checked where they already are on the host, or
after the round's one host read. So a guard costs a call and never waits for a device.
"""

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from spsbench.errors import PlugInError, SpsError, first_line, is_out_of_memory
from spsbench.loop.drafter_context import Plan
from spsbench.loop.sampling import unsharpened
from spsbench.loop.tree import tree_of
from spsbench.loop.types import (
    Context,
    Draft,
    Drafter,
    Drawn,
    GoOn,
    Guarantee,
    Noise,
    Relaxing,
    Round,
    Schedule,
    Scores,
    Verdict,
    Verifier,
    always,
)
from spsbench.plugins import arguments, check_all_there, in_name_of, named, plug_in
from spsbench.registry import Kind, entries
from spsbench.sources import file_of, place_in
from spsbench.spec import Spec


def guarded(
    drafter: Drafter, verifier: Verifier, schedule: Schedule, vocab_size: int
) -> "tuple[Drafter, GuardedVerifier, GuardedSchedule]":
    """Wrap drafter, verifier and schedule in guards."""
    return (
        calling("drafters", drafter, GuardedDrafter, drafter, vocab_size),
        calling("verifiers", verifier, GuardedVerifier, verifier),
        GuardedSchedule(schedule),
    )


class GuardedDrafter(Drafter):
    """A drafter whose drafts are checked; an invalid draft raises an error that names it."""

    def __init__(self, drafter: Drafter, vocab_size: int) -> None:
        self._drafter, self._vocab_size = drafter, vocab_size
        self.drawn = drafter.drawn
        self.tree, self.layers, self.limit = drafter.tree, drafter.layers, drafter.limit

    def begin(self, prompt: Sequence[int], prefill: Scores) -> None:
        calling("drafters", self._drafter, self._drafter.begin, prompt, prefill)

    def draft(self, context: Context, k: int, noise: Noise, go_on: GoOn) -> Draft:
        call = self._drafter.draft
        draft: Draft = calling("drafters", self._drafter, call, context, k, noise, go_on)
        by_rule = isinstance(draft, Draft) and draft.by_rule and context.rule_k is not None
        most = context.rule_k if by_rule and context.rule_k is not None else k
        if wrong := what_is_wrong(draft, self, most, self._vocab_size):
            raise PlugInError(f"{part_name('drafters', self._drafter)} {wrong}")
        return replace(draft, drawn=self.drawn)


class GuardedVerifier:
    """A verifier whose verdicts are checked; a wrong shape raises an error that names it."""

    guarantee: ClassVar[Guarantee] = Guarantee.LOSSY  # it promises nothing itself

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self.__wrapped__ = verifier
        self._rule = verifier.__call__
        innermost: object = inspect.unwrap(verifier)
        self._relax = innermost.relax if isinstance(innermost, Relaxing) else None

    def refuses(self, drawn: Drawn, tree: bool) -> str | None:
        """Return the verifier's reason against this pairing, or None."""
        reason: str | None = calling(
            "verifiers", self._verifier, self._verifier.refuses, drawn, tree
        )
        return reason

    def __call__(self, draft: Draft, q: Tensor, noise: Noise) -> Verdict:
        """Verify the draft, and check the shapes of the verdict."""
        verdict = calling("verifiers", self._verifier, self._rule, draft, q, noise)
        n = len(draft.tokens)
        if not isinstance(verdict, tuple) or list(map(shape, verdict)) != [(n,), (), ()]:
            ruled = list(map(described, verdict)) if isinstance(verdict, tuple) else verdict
            raise PlugInError(
                f"{part_name('verifiers', self._verifier)} ruled {ruled}: expected a Verdict with "
                f"a path of {n} nodes and two numbers, all tensors"
            )
        return Verdict(*verdict)

    def laws(self, draft: Draft, q: Tensor, warp: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Return the laws to verify with: `q`, the laws of the logits `x`, or what a rule relaxes.

        Only at temperature 0, where a rule sees no more than the likeliest token.
        """
        if self._relax is None or (sure := unsharpened(warp, x, q)) is q:
            return q
        laws: Tensor = calling("verifiers", self._verifier, self._relax, draft, q, sure)
        if shape(laws) != tuple(q.shape):
            line = f"{part_name('verifiers', self._verifier)} relaxed laws to {described(laws)}"
            raise PlugInError(f"{line}: expected {described(q)}")
        return laws


class GuardedSchedule:
    """A schedule whose choices are checked; anything but a whole number raises an error."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        stops = getattr(schedule.go_on, "__func__", None) is not Schedule.go_on
        self.go_on: GoOn = self._go_on if stops else always

    def k(self, history: Sequence[Round]) -> int:
        """Return the schedule's K."""
        k: int = calling("schedules", self._schedule, self._schedule.k, history)
        if not isinstance(k, int) or k < 0:
            line = f"{part_name('schedules', self._schedule)} chose K = {k!r}: expected an int >= 0"
            raise PlugInError(line)
        return k

    def nodes(self, history: Sequence[Round]) -> int | None:
        """Return the schedule's limit of nodes; None if the schedule has none."""
        chosen = getattr(self._schedule, "nodes", None)
        most = calling("schedules", self._schedule, chosen, history) if callable(chosen) else None
        if most is not None and (not isinstance(most, int) or most < 0):
            line = f"{part_name('schedules', self._schedule)} chose {most!r} nodes: expected an int"
            raise PlugInError(f"{line} >= 0, or None")
        return most

    def rule_k(self, history: Sequence[Round], room: int) -> int | None:
        """Return the tokens of a draft by rule, at most `room`; None if it is K as for all."""
        chosen = getattr(self._schedule, "rule_k", None)
        most = calling("schedules", self._schedule, chosen, history) if callable(chosen) else None
        if most is not None and (not isinstance(most, int) or most < 0):
            line = f"{part_name('schedules', self._schedule)} chose {most!r} tokens by rule"
            raise PlugInError(f"{line}: expected an int >= 0, or None")
        return None if most is None else min(most, room)

    def _go_on(self, p: Tensor) -> Tensor:
        """Return whether the schedule drafts the next slot."""
        further: Tensor = calling("schedules", self._schedule, self._schedule.go_on, p)
        return further


def calling(kind: Kind, part: object, call: Callable[..., Any], *arguments: object) -> Any:
    """Return `call(*arguments)`, with any error attributed to `part`."""
    try:
        return call(*arguments)
    except Exception as error:
        nobody_s = isinstance(error, SpsError) or is_out_of_memory(error)
        if nobody_s or type(inspect.unwrap(part)).__module__.startswith("spsbench."):  # type: ignore[arg-type]
            raise
        module = type(inspect.unwrap(part)).__module__  # type: ignore[arg-type]
        why = f"{type(error).__name__}: {first_line(error)}{place_in(module, error)}"
        raise PlugInError(f"{part_name(kind, part)} failed: {why}") from error


def part_name(kind: Kind, part: object) -> str:
    """Return `drafter repeat (mypackage.repeat:Repeat)` for the plug-in inside any wrapper."""
    part_type = type(inspect.unwrap(part))  # type: ignore[arg-type]
    if (file := file_of(part_type.__module__)) is not None:
        return f"{kind[:-1]} {file}:{part_type.__qualname__}"
    names = [entry.name for entry in entries(kind) if is_at(entry.where, part_type)]
    where = f"{part_type.__module__}:{part_type.__qualname__}"
    return f"{kind.removesuffix('s')} {names[0]} ({where})" if names else f"{kind[:-1]} {where}"


def is_at(path: str, target: type) -> bool:
    """Return whether `target` is the object that `module:attribute` names, if that is imported."""
    module, _, attribute = path.partition(":")
    return getattr(sys.modules.get(module), attribute, None) is target


def what_is_wrong(draft: object, drafter: Drafter, k: int, vocab_size: int) -> str | None:
    """Return why the loop cannot use `draft`, or None."""
    if not isinstance(draft, Draft):
        return f"drafted a {type(draft).__name__}: expected a Draft"
    tokens, probs, parents = draft.tokens, draft.probs, draft.parents
    if not isinstance(tokens, Tensor) or tokens.dim() != 1 or tokens.dtype != torch.int64:
        return f"drafted tokens {described(tokens)}: expected int64 [N]"
    n = len(tokens)
    if parents is None and n > k:
        return f"drafted {n} tokens: expected at most {k}"
    if parents is not None and (wrong := wrong_tree(parents, drafter, n, k, draft.scored_only)):
        return wrong
    if not 0 <= draft.scored_only <= (0 if parents is None else n):
        return f"only scores {draft.scored_only} of {n} nodes: expected a tree's last ones"
    if probs is None and n > 0 and drafter.drawn is not Drawn.POINT:
        return f"declares {drafter.drawn} but gave no laws"
    if probs is not None and not (
        isinstance(probs, Tensor) and probs.shape == (n, vocab_size) and probs.is_floating_point()
    ):
        return f"gave laws {described(probs)}: expected floats [{n}, {vocab_size}]"
    if (
        n
        and tokens.device.type == "cpu"
        and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size
    ):
        return f"drafted {tokens.tolist()}: expected token ids of 0 to {vocab_size - 1}"
    return None


def wrong_tree(
    parents: object, drafter: Drafter, n: int, k: int, scored_only: int = 0
) -> str | None:
    """Return why `parents` is no tree of `n` nodes, those offered at most `k` deep, or None."""
    if not drafter.tree:
        return "drafted a tree but declares tree = False"
    if not isinstance(parents, Tensor) or parents.shape != (n,) or parents.dtype != torch.int64:
        return f"gave parents {described(parents)}: expected int64 [{n}]"
    if parents.device.type != "cpu":
        return None  # its values would have to be waited for
    above: list[int] = parents.tolist()
    for node, parent in enumerate(above):
        if not -1 <= parent < node:
            return f"gave node {node} the parent {parent}: expected -1 to {node - 1}"
    deepest = max(tree_of(above[: n - scored_only]).depth)
    return f"drafted a tree of depth {deepest}: expected at most {k}" if deepest > k else None


def shape(value: object) -> tuple[int, ...] | None:
    """Return the shape of a tensor; None for any other value."""
    return tuple(value.shape) if isinstance(value, Tensor) else None


def described(value: object) -> str:
    """Return a tensor as `torch.float32 [3, 2]`, any other value as the name of its type."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__


def check_ruling(
    path: Sequence[int], token: int, draft: Draft, verifier: Verifier, vocab_size: int
) -> None:
    """Check the values of a verdict once they are on the host."""
    n = len(draft.tokens)
    fits = all(node < n for node in path)
    if draft.parents is None:
        fits = list(path) == list(range(len(path)))
    if not fits or not 0 <= token < vocab_size:
        raise PlugInError(
            f"{part_name('verifiers', verifier)} accepted {list(path)} of {n} and ruled token "
            f"{token}: expected nodes from the first on, and a token id of 0 to {vocab_size - 1}"
        )


BY_CLASS: Any = vars(Drafter)["plan"].__func__


def plan_of(drafter: Spec) -> Plan:
    """Return the plan of a drafter for the arguments of its spec."""
    maker = plug_in("drafters", drafter)
    check_all_there("drafters", drafter, maker)
    options = arguments(drafter, maker)
    if getattr(maker.plan, "__func__", None) is BY_CLASS and not hasattr(maker, "drawn"):
        raise PlugInError(
            f"{named('drafters', drafter)} has no drawn: expected Drawn.POINT, IID or DISTINCT, or "
            "a plan of its own"
        )
    with in_name_of("drafters", drafter):
        plan = maker.plan(**options)
    if not isinstance(plan, Plan):
        raise PlugInError(
            f"{named('drafters', drafter)} planned a {type(plan).__name__}: expected a Plan of "
            "spsbench.loop.types"
        )
    return plan
