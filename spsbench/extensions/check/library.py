"""Check of a running server against its baseline or against the weights that it should serve.

Torch is loaded only for weights.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, first_line
from spsbench.extensions.check.check import Checked, examine, recomputed
from spsbench.extensions.check.journal import Journal
from spsbench.extensions.check.plan import Plan
from spsbench.extensions.check.texts import CheckProgress
from spsbench.extensions.check.weights import Weights
from spsbench.messages import ignore


def check(
    plan: Plan,
    keep: Path | None = None,
    *,
    resume: bool = False,
    offline: bool = False,
    load: Callable[..., Weights] | None = None,
    watch: Callable[[CheckProgress], None] = ignore,
) -> Checked:
    """Check the server of `plan` and return all results.

    Args:
        plan: URL, baseline, weights, and parameters of the check.
        keep: file for the answers, appended on arrival.
        resume: continue with that file.
        offline: load the weights from local files only.
        load: what loads weights by name; `load_weights` by default.
        watch: called with the progress.

    Raises:
        SpsError: no server, a wrong model, other weights, or a server that stopped.
    """
    load = load or partial(load_weights, offline=offline)
    weights, draft = _loaded(plan, load)
    return examine(plan, weights, keep, draft=draft, resume=resume, watch=watch)


def recompute(
    path: Path, chosen: Mapping[str, Any], *, load: Callable[..., Weights] | None = None
) -> Checked:
    """Return the results of kept answers, computed anew without a server.

    Args:
        path: file of a check, which may be compressed.
        chosen: parameters of the plan in place of those that the file has.
        load: what loads weights by name; `load_weights` from local files by default.

    Raises:
        SpsError: another file, other weights, or an answer that is missing.
    """

    def plan_of(values: Mapping[str, Any]) -> Plan:
        try:
            return Plan.from_json(values, chosen)
        except (TypeError, ValueError) as error:
            raise DataError(
                f"kept answers of another version ({path}: {first_line(error)}): expected one of "
                "this version"
            ) from error

    journal = Journal.closed_of(path, plan_of)
    weights, draft = _loaded(journal.plan, load or partial(load_weights, offline=True))
    return recomputed(journal, journal.plan, weights, draft)


def _loaded(plan: Plan, load: Callable[..., Weights]) -> tuple[Weights | None, Weights | None]:
    """Return the weights and the draft model of a plan."""
    weights = load(plan.weights) if plan.weights else None
    draft = load(plan.draft) if plan.draft else None
    if (
        weights is not None
        and draft is not None
        and draft.texts[: len(weights.texts)] != (weights.texts[: len(draft.texts)])
    ):
        raise DataError(
            f"a draft with other tokens than the weights ({draft.name}, {weights.name}): expected "
            "one vocabulary. Leave `draft` out"
        )
    return weights, draft


def load_weights(name: str, *, offline: bool = False) -> Weights:
    """Load a model in float32, to score tokens by a plain forward pass without a cache."""
    from spsbench.audit.statistical.forward import Scorer
    from spsbench.pair.load import load

    pair: Any = load(target=name, k=0, engine="eager", dtype="float32", offline=offline)
    _, loaded = pair.configured()
    scorer = Scorer(loaded.target, loaded.vocab_size, reload=False)
    tokenizer = loaded.tokenizer
    special = set(tokenizer.all_special_ids)

    def chat(text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(tokenizer.encode(ids, add_special_tokens=False))

    def texts() -> Sequence[str | None]:
        decoded = tokenizer.batch_decode([[i] for i in range(loaded.vocab_size)])
        return [None if i in special else text for i, text in enumerate(decoded)]

    return Weights(
        name=name,
        score=scorer.logits,
        encode=lambda text: list(tokenizer.encode(text)),
        chat=chat,
        texts=texts(),
        ends=frozenset(loaded.eos),
        bos=tokenizer.bos_token_id,
    )
