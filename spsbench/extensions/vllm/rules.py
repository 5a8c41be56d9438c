"""Drafters by rule that vLLM can serve: those that read the text's tokens and nothing else."""

import json
import shlex
from types import SimpleNamespace
from typing import Any

from spsbench.errors import UsageError
from spsbench.plugins import make, plug_in
from spsbench.settings.cell_from_options import HYBRID, parse_inner
from spsbench.spec import Spec

RULES = ("ngram", "suffix", "copy")
NEED_MORE = ("nodes", "shared", "after", "before")  # arguments: trees, other texts, texts of tokens
CLASS = "spsbench.extensions.vllm.proposer.Proposer"
KEY = "spsbench"  # names `Proposer`'s options in vLLM's additional config


def open_rule(spec: Spec) -> Any:
    """Return a new drafter whose `begin` and `proposals` need the tokens of the text alone.

    UsageError: not one of `RULES` or a hybrid of them, or arguments refused or in `NEED_MORE`.
    """
    inner = [spec]
    if spec.name == HYBRID:
        from spsbench.methods.drafters.hybrid import FIRST, THEN  # torch

        parts = {"first": FIRST, "then": THEN} | dict(spec.args)
        inner = [parse_inner(str(parts[key])) for key in ("first", "then")]
    for drafter in inner:
        plug_in("drafters", drafter)
        if drafter.name not in RULES:
            raise UsageError(
                f"{drafter.name} in vLLM: expected {', '.join(RULES)} or a {HYBRID} of them, which "
                "need the tokens alone. A head or a draft model is exported by its folder"
            )
        if needing := [name for name in NEED_MORE if dict(drafter.args).get(name)]:
            raise UsageError(
                f"{drafter} in vLLM: expected a chain from the tokens of one text. Leave "
                f"{needing[0]}= out"
            )
    return make("drafters", spec, SimpleNamespace(tokenizer=None, vocab_size=0))


def serving(drafter: str, k: int, target: str) -> tuple[dict[str, dict[str, Any]], str]:
    """Return vLLM's two options, by flag without `--`, to draft so, and the command line as text.

    UsageError: `drafter` is no spec, or one that `open_rule` refuses.
    """
    try:
        open_rule(Spec.parse(drafter))
    except ValueError as error:
        raise UsageError(f"drafter {error}") from error
    chosen = {"method": "custom_class", "model": CLASS, "num_speculative_tokens": k}
    about: dict[str, Any] = {KEY: {"drafter": drafter}}
    options = {"speculative-config": chosen, "additional-config": about}
    flags = [word for flag, value in options.items() for word in (f"--{flag}", json.dumps(value))]
    return options, shlex.join(["vllm", "serve", target, *flags])
