"""Checks around plug-ins: errors name the plug-in, and returned values must fit the loop.

Shapes and dtypes are known on the host. Values are checked where they already are on the host, or
after the round's one host read, so no check waits for a device. Our own parts are not checked.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from spsbench.errors import PlugInError, SpsError, first_line, is_out_of_memory
from spsbench.loop.drafter_context import Plan
from spsbench.loop.sampling import confidence_probs
from spsbench.loop.tree import tree_of
from spsbench.loop.types import (
    Draft,
    Drafter,
    Drawn,
    GoOn,
    Relaxing,
    Round,
    Schedule,
    Verifier,
    always,
)
from spsbench.plugins import arguments, file_of, full_name, in_name_of, place_in, plug_in
from spsbench.registry import Kind, entries
from spsbench.spec import Spec


def module_of(part: object) -> str:
    """Return the module of the plug-in inside any wrapper."""
    return type(inspect.unwrap(part)).__module__  # type: ignore[arg-type]


def is_foreign(part: object) -> bool:
    """Return whether a part is of another package."""
    return not module_of(part).startswith("spsbench.")


@contextmanager
def blame(kind: Kind, part: object) -> Iterator[None]:
    """Raise errors of a foreign `part` in the block as PlugInError that names it and the line.

    Errors of our parts, SpsErrors and lack of memory stay as they are.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, SpsError) or is_out_of_memory(error) or not is_foreign(part):
            raise
        why = f"{type(error).__name__}: {first_line(error)}{place_in(module_of(part), error)}"
        raise PlugInError(f"{part_name(kind, part)} failed: {why}") from error


def choice_of(schedule: Schedule, history: Sequence[Round]) -> tuple[int, int | None, int | None]:
    """Return a schedule's next `k`, `nodes` (None: any number) and a hybrid's `rule_k` (None: `k`).

    PlugInError: a foreign schedule fails, or chooses another value than an int >= 0.
    """
    with blame("schedules", schedule):
        choice = schedule.k(history), schedule.nodes(history), schedule.rule_k(history)
    chosen = zip(("k", "nodes", "rule_k"), choice, strict=True) if is_foreign(schedule) else ()
    for name, value in chosen:
        wrong = not isinstance(value, int) or value < 0
        if wrong and (value is not None or name == "k"):
            raise PlugInError(
                f"{part_name('schedules', schedule)} chose {name} = {value!r}: expected an int >= 0"
            )
    return choice


def go_on_of(schedule: Schedule) -> GoOn:
    """Return a schedule's `go_on`, `always` for the default; PlugInError if a foreign one fails."""
    if getattr(schedule.go_on, "__func__", None) is Schedule.go_on:
        return always
    if not is_foreign(schedule):
        return schedule.go_on

    def go_on(p: Tensor) -> Tensor:
        with blame("schedules", schedule):
            return schedule.go_on(p)

    return go_on


def relaxing_of(
    verifier: Verifier, warp: Callable[[Tensor], Tensor]
) -> Callable[[Draft, Tensor, Tensor], Tensor] | None:
    """Return a function of a draft, `q` and its logits to the probs [N+1, V] to verify with.

    None: the rule is not `Relaxing`. The probs differ from `q` only at temperature 0, where a rule
    sees no more than the likeliest token.
    """
    rule: object = inspect.unwrap(verifier)
    if not isinstance(rule, Relaxing):
        return None

    def relaxed(draft: Draft, q: Tensor, logits: Tensor) -> Tensor:
        """Return the rule's relaxed `q` at temperature 0, else `q`; PlugInError: another shape."""
        if (sure := confidence_probs(warp, logits, q)) is q:
            return q
        probs = rule.relax(draft, q, sure)
        if shape_or_none(probs) != tuple(q.shape):
            line = f"{part_name('verifiers', verifier)} relaxed probabilities to {describe(probs)}"
            raise PlugInError(f"{line}: expected {describe(q)}")
        return probs

    return relaxed


def check_usable(draft: object, drafter: Drafter, k: int, rule_k: int | None, vocab: int) -> None:
    """Raise PlugInError for what `what_is_wrong` says of a draft; `rule_k` is k of one by rule."""
    if isinstance(draft, Draft) and draft.by_rule and rule_k is not None:
        k = rule_k
    if wrong := what_is_wrong(draft, drafter, k, vocab):
        raise PlugInError(f"{part_name('drafters', drafter)} {wrong}")


def check_verdict(verdict: object, verifier: Verifier, n: int) -> None:
    """Raise PlugInError unless `verdict` is a tuple of tensors of the shapes [n], [] and []."""
    if not isinstance(verdict, tuple) or list(map(shape_or_none, verdict)) != [(n,), (), ()]:
        ruled = list(map(describe, verdict)) if isinstance(verdict, tuple) else verdict
        raise PlugInError(
            f"{part_name('verifiers', verifier)} ruled {ruled}: expected a Verdict with a path of "
            f"{n} nodes and two numbers, all tensors"
        )


def part_name(kind: Kind, part: object) -> str:
    """Return the plug-in inside any wrapper as `drafter repeat (mypackage.repeat:Repeat)`.

    Without the name if none is registered; from a file as `drafter ./repeat.py:Repeat`.
    """
    part_type = type(inspect.unwrap(part))  # type: ignore[arg-type]
    where = f"{file_of(part_type.__module__) or part_type.__module__}:{part_type.__qualname__}"
    names = [entry.name for entry in entries(kind) if entry.where == where]
    return f"{kind[:-1]} {names[0]} ({where})" if names else f"{kind[:-1]} {where}"


def what_is_wrong(draft: object, drafter: Drafter, k: int, vocab_size: int) -> str | None:
    """Return why the loop cannot use `draft`; None: it can.

    It must be a `Draft` of int64 [N] tokens below `vocab_size` (read only on a CPU), a chain of at
    most `k` or a tree that `wrong_tree` passes. Its probs are floats [N, vocab_size], or None for
    no tokens or a deterministic drafter; `scored_only` is 0 to N, and 0 in a chain.
    """
    if not isinstance(draft, Draft):
        return f"drafted a {type(draft).__name__}: expected a Draft"
    tokens, probs, parents = draft.tokens, draft.probs, draft.parents
    if not isinstance(tokens, Tensor) or tokens.dim() != 1 or tokens.dtype != torch.int64:
        return f"drafted tokens {describe(tokens)}: expected int64 [N]"
    n = len(tokens)
    if parents is None and n > k:
        return f"drafted {n} tokens: expected at most {k}"
    if parents is not None and (wrong := wrong_tree(parents, drafter, n, k, draft.scored_only)):
        return wrong
    if not 0 <= draft.scored_only <= (0 if parents is None else n):
        return f"only scores {draft.scored_only} of {n} nodes: expected a tree's last ones"
    if probs is None and n > 0 and drafter.drawn is not Drawn.POINT:
        return f"declares {drafter.drawn} but gave no probabilities"
    if probs is not None and not (
        isinstance(probs, Tensor) and probs.shape == (n, vocab_size) and probs.is_floating_point()
    ):
        return f"gave probabilities {describe(probs)}: expected floats [{n}, {vocab_size}]"
    if (
        n
        and tokens.device.type == "cpu"
        and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size
    ):
        return f"drafted {tokens.tolist()}: expected token ids of 0 to {vocab_size - 1}"
    return None


def wrong_tree(parents: object, drafter: Drafter, n: int, k: int, scored_only: int) -> str | None:
    """Return why `drafter` may not draft a tree of `parents`; None: it may.

    The drafter must declare trees; `parents` must be int64 [n], each an earlier node or -1, and no
    node but the last `scored_only` be deeper than `k`. On a device the values are not read.
    """
    if not drafter.tree:
        return "drafted a tree but declares tree = False"
    if not isinstance(parents, Tensor) or parents.shape != (n,) or parents.dtype != torch.int64:
        return f"gave parents {describe(parents)}: expected int64 [{n}]"
    if parents.device.type != "cpu":
        return None  # its values would have to be waited for
    try:
        tree_of(parents)
    except ValueError as error:
        return f"drafted a tree whose {error}"
    deepest = max(tree_of(parents[: n - scored_only]).depth)
    return f"drafted a tree of depth {deepest}: expected at most {k}" if deepest > k else None


def shape_or_none(value: object) -> tuple[int, ...] | None:
    """Return the shape of a tensor; None for any other value."""
    return tuple(value.shape) if isinstance(value, Tensor) else None


def describe(value: object) -> str:
    """Return a tensor as `torch.float32 [3, 2]`, any other value as the name of its type."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__


def check_ruling(
    path: Sequence[int], token: int, draft: Draft, verifier: Verifier, vocab_size: int
) -> None:
    """Raise PlugInError unless `path` is a chain's first nodes, or any of a tree; `token` an id."""
    n = len(draft.tokens)
    fits = all(node < n for node in path)
    if draft.parents is None:
        fits = list(path) == list(range(len(path)))
    if not fits or not 0 <= token < vocab_size:
        raise PlugInError(
            f"{part_name('verifiers', verifier)} accepted {list(path)} of {n} and ruled token "
            f"{token}: expected nodes from the first on, and a token id of 0 to {vocab_size - 1}"
        )


def plan_of(drafter: Spec) -> Plan:
    """Return the `Plan` that the drafter of a spec makes of its arguments; no model is loaded.

    Raises UsageError for an unknown name or argument, or a value that the plug-in refuses;
    PlugInError where it fails or returns no Plan; SpsError for a bad file.
    """
    maker = plug_in("drafters", drafter)
    options = arguments("drafters", drafter, maker)
    with in_name_of("drafters", drafter):
        plan = maker.plan(**options)
    if not isinstance(plan, Plan):
        raise PlugInError(
            f"{full_name('drafters', drafter)} planned a {type(plan).__name__}: expected a Plan of "
            "spsbench.loop.types"
        )
    return plan
