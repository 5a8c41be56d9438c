"""`spsbench.generate`: models in, text and rounds out."""

from collections.abc import Sequence
from dataclasses import dataclass

from spsbench.build import resolve
from spsbench.config import make_cell
from spsbench.generation import Generation
from spsbench.loading import Shelf
from spsbench.metrics import Metrics, metrics
from spsbench.models.loader import encode
from spsbench.results import Record


@dataclass(frozen=True, slots=True)
class Generated:
    """A finished generation."""

    text: str
    tokens: list[int]
    record: Record  # rounds, finish reason, seconds
    metrics: Metrics


def generate(
    prompt: str | Sequence[int],
    *,
    target: str = "nano",
    draft: str | None = None,
    drafter: str | None = None,
    verifier: str | None = None,
    schedule: str | None = None,
    k: int = 4,
    max_new_tokens: int = 128,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    stop: Sequence[str] = (),
    ignore_eos: bool = False,
    device: str = "cpu",
    dtype: str = "auto",
) -> Generated:
    """Continue `prompt` (text, or token ids) by speculative sampling, exactly as the target would.

    `target` and `draft` are names of bundled models, local folders or hub ids; a bundled target
    brings its draft, any other without a `draft` drafts by prompt lookup. The drafter, verifier and
    schedule are specs such as `ngram:n=3`; `k` is the tokens drafted a round, 0 for auto-regressive
    sampling.

    Raises:
        spsbench.errors.SpsError: with a line that says what was wrong and what to do.
    """
    cell = resolve(
        make_cell(
            target=target,
            draft=draft,
            drafter=drafter,
            verifier=verifier,
            schedule=schedule,
            k=k,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            stop=stop,
            ignore_eos=ignore_eos,
            device=device,
            dtype=dtype,
        )
    )
    loaded = Shelf().load(cell)
    ids = encode(loaded.tokenizer, prompt) if isinstance(prompt, str) else prompt
    generation = Generation(cell, loaded, ids)
    for _ in generation:
        pass
    record = generation.record
    figures = metrics(record.rounds, record.prefill_seconds)
    return Generated(record.text, record.tokens, record, figures)
