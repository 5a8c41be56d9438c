"""The keywords of the library, for checkers of types and editors: options by name.

Made of the options that the records of this room declare, by `python -m tests.settings.keywords`,
and held equal to them by a test: do not edit. None counts as not given.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypedDict

from spsbench.spec import Spec

Schema = str | Path | Mapping[str, object] | type
"""A JSON schema: its text or file, a dict, or a class of pydantic."""


class SharedOptions(TypedDict, total=False):
    """Options of a call of a pair and of a plan."""

    target: str | Path | None
    revision: str | None
    weights: str | None
    trust_remote_code: bool | None
    engine: str | Spec | None
    device: str | None
    dtype: str | None
    attention: str | None
    parallel: str | None
    draft_revision: str | None
    draft_weights: str | None
    draft_trust_remote_code: bool | None
    draft_engine: str | Spec | None
    draft_device: str | None
    draft_dtype: str | None
    draft_attention: str | None
    draft_parallel: str | None
    random_weights: bool | None
    decoder: str | Spec | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    max_new_tokens: int | None
    seed: int | None
    ignore_eos: bool | None
    leave_open: bool | None


class CellOptions(SharedOptions, total=False):
    """Options of a call of a pair."""

    draft: str | Path | None
    k: int | None
    drafter: str | Spec | None
    verifier: str | Spec | None
    schedule: str | Spec | None
    stop: str | Sequence[str] | None
    json_schema: Schema | None
    regex: str | None
    grammar: str | Path | None


class RunOptions(TypedDict, total=False):
    """Options of the folder and the workers of a run."""

    out: str | Path | None
    resume: bool | None
    overwrite: bool | None
    shard: str | None
    score: bool | None
    on: str | None


class AccessOptions(TypedDict, total=False):
    """Options of the access to models."""

    offline: bool | None
    allow_pickle: bool | None
    threads: int | Literal["auto"] | None
    rank_timeout: float | None


class LoadOptions(CellOptions, AccessOptions, total=False):
    """Options of `spsbench.load`."""


class VerifyOptions(CellOptions, total=False):
    """Options of `Pair.verify`."""

    task: str | Sequence[str] | None
    prompts: int | None
    sample_seed: int | None
    bias: float | None
    level: float | None
    max_tokens: int | None
    workers: int | None


class BenchOptions(AccessOptions, RunOptions, total=False):
    """Options of `spsbench.bench`: several values of an option of cells are several cells."""

    data: str | Path | None
    k: int | str | Iterable[int] | None
    method: str | Sequence[str] | None
    batch: int | str | Iterable[int] | None
    continuous: bool | None
    setting: str | Sequence[str] | None
    limit: int | None
    sample_seed: int | None
    samples: int | None
    repeats: int | None
    seeds: int | str | Iterable[int] | None
    chat: bool | str | None
    system: str | None
    ignore_end: bool | None
    record: str | None
    target: str | Path | Sequence[str | Path] | None
    revision: str | Sequence[str] | None
    weights: str | Sequence[str] | None
    trust_remote_code: bool | Sequence[bool] | None
    engine: str | Spec | Sequence[str | Spec] | None
    device: str | Sequence[str] | None
    dtype: str | Sequence[str] | None
    attention: str | Sequence[str] | None
    parallel: str | Sequence[str] | None
    draft: str | Path | Sequence[str | Path] | None
    draft_revision: str | Sequence[str] | None
    draft_weights: str | Sequence[str] | None
    draft_trust_remote_code: bool | Sequence[bool] | None
    draft_engine: str | Spec | Sequence[str | Spec] | None
    draft_device: str | Sequence[str] | None
    draft_dtype: str | Sequence[str] | None
    draft_attention: str | Sequence[str] | None
    draft_parallel: str | Sequence[str] | None
    random_weights: bool | Sequence[bool] | None
    drafter: str | Spec | Sequence[str | Spec] | None
    verifier: str | Spec | Sequence[str | Spec] | None
    schedule: str | Spec | Sequence[str | Spec] | None
    decoder: str | Spec | Sequence[str | Spec] | None
    temperature: float | Sequence[float] | None
    top_k: int | Sequence[int] | None
    top_p: float | Sequence[float] | None
    min_p: float | Sequence[float] | None
    max_new_tokens: int | Sequence[int] | None
    stop: str | Sequence[str] | None
    ignore_eos: bool | Sequence[bool] | None
    json_schema: Schema | Sequence[Schema] | None
    leave_open: bool | Sequence[bool] | None
    regex: str | Sequence[str] | None
    grammar: str | Path | Sequence[str | Path] | None
    seed: int | None
    warmup: int | None
    title: str | None
    paper: bool | None
    no_texts: bool | None


class PlanOptions(SharedOptions, AccessOptions, RunOptions, total=False):
    """Options of `Pair.plan`: several drafts, drafters, verifiers and schedules are compared."""

    draft: str | Path | Sequence[str | Path] | None
    drafter: str | Spec | Sequence[str | Spec] | None
    verifier: str | Spec | Sequence[str | Spec] | None
    schedule: str | Spec | Sequence[str | Spec] | None
    prompts: str | Path | None
    k: int | str | None
    limit: int | None
    held_back: int | None
    sample_seed: int | None
    confirm: int | None
    cost_seconds: float | None
    trace: str | Sequence[str] | None
    costs: str | Path | None
    draft_cost: float | None
    target_cost: float | None
    batch: str | None
    chat: str | None
    system: str | None
    every: bool | None
