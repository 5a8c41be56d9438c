"""From what a user says to a cell: defaults and every check that needs no model and no torch."""

import math
from collections.abc import Sequence
from dataclasses import replace

from spsbench.errors import UsageError
from spsbench.models.bundled import DEFAULT_DRAFT
from spsbench.results import Cell, ModelRef, Spec

K_MAX = 64
SEED_MAX = 2**64 - 1


def make_cell(
    *,
    target: str = "nano",
    draft: str | None = None,
    drafter: str | None = None,
    verifier: str | None = None,
    schedule: str | None = None,
    engine: str = "fast",
    k: int = 4,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    stop: Sequence[str] = (),
    ignore_eos: bool = False,
    revision: str | None = None,
    draft_revision: str | None = None,
    device: str = "cpu",
    dtype: str = "auto",
    attention: str | None = None,
    trust_remote_code: bool = False,
) -> Cell:
    """The cell that these flags mean; the defaults are those of `sps generate`.

    A bundled target brings its draft; another target without `draft` drafts by prompt lookup.
    `k` 0 is auto-regressive sampling. `k` is for the schedule `constant`; another names its own.

    Raises:
        UsageError: a value out of range, or two that contradict each other.
    """
    check(0 <= k <= K_MAX, "--k", k, f"1..{K_MAX}, or 0 for auto-regressive sampling")
    check(max_new_tokens >= 0, "--max-new-tokens", max_new_tokens, "0 or more")
    check(
        math.isfinite(temperature) and temperature >= 0, "--temperature", temperature, "0 or more"
    )
    check(0 < top_p <= 1, "--top-p", top_p, "above 0 and at most 1")
    check(top_k >= 0, "--top-k", top_k, "1 or more, or 0 for off")
    check(0 <= seed <= SEED_MAX, "--seed", seed, "0..2^64-1")
    check(all(stop), "--stop", "''", "a text of at least one character")
    if trust_remote_code and revision is None:
        raise UsageError("--trust-remote-code: expected a pinned revision. Give it with --revision")
    if draft_revision is not None and draft is None:
        raise UsageError("--draft-revision without --draft: expected both or none")

    drafting = parse("--drafter", drafter) if drafter else None
    if draft is None and (drafting is None or drafting.name == "model"):
        draft = DEFAULT_DRAFT.get(target)
    if drafting is None:
        drafting = Spec("model" if draft else "ngram")
    if k == 0 and schedule is None:
        drafting, draft = Spec("none"), None
    constant = Spec("constant", (("lookahead", k),))
    return Cell(
        target=ModelRef(target, revision),
        draft=ModelRef(draft, draft_revision) if draft else None,
        drafter=drafting,
        verifier=parse("--verifier", verifier or "auto"),
        schedule=parse("--schedule", schedule) if schedule else constant,
        engine=parse("--engine", engine),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        stop=tuple(stop),
        ignore_eos=ignore_eos,
        seed=seed,
        device=device,
        dtype=dtype,
        attention=attention,
        trust_remote_code=trust_remote_code,
    )


def auto_regressive(cell: Cell) -> Cell:
    """The cell of `--k 0` that is otherwise like `cell`; its verifier is yet to be resolved."""
    plain, constant = Spec("none"), Spec("constant", (("lookahead", 0),))
    return replace(cell, draft=None, drafter=plain, verifier=Spec("auto"), schedule=constant)


def check(holds: bool, flag: str, value: object, expected: str) -> None:
    """Refuse a value out of range."""
    if not holds:
        raise UsageError(f"{flag} is {value}: expected {expected}")


def parse(flag: str, text: str) -> Spec:
    """A spec, or a usage error that names the flag."""
    try:
        return Spec.parse(text)
    except ValueError as error:
        raise UsageError(f"{flag} {error}") from error
