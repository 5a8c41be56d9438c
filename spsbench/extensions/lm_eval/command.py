"""`sps lm-eval`: the command line of lm-evaluation-harness, and its model `sps`."""

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Annotated, Any

import typer
from tqdm import tqdm

from spsbench.cli.terminal import say
from spsbench.errors import MissingError, UsageError
from spsbench.metrics.rates import generation_metrics
from spsbench.settings.cell import DISTRIBUTION
from spsbench.settings.processors import IN_CONFIGS, PROCESSORS
from spsbench.settings.records import RoundRecord

MAX_TOKENS = 256  # where a task gives no limit
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
SAMPLING = (*IN_CONFIGS, *DISTRIBUTION, "seed")
NEUTRAL = dict.fromkeys(("num_beams", "num_return_sequences"), 1) | {"use_cache": True, "top_k": -1}
NEUTRAL |= dict.fromkeys(("repetition_penalty", "length_penalty"), 1)
NEUTRAL |= dict.fromkeys(("presence_penalty", "frequency_penalty", "no_repeat_ngram_size"), 0)
OPENED: list["PairModel"] = []


def lm_eval(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENT...", help="Arguments of lm_eval, such as --tasks gsm8k."),
    ] = None,
) -> None:
    """Run lm-evaluation-harness with the model sps; arguments are those of lm_eval.

    How it speculated is printed at the end. Another model named by --model is run instead.

    sps lm-eval --model_args target=T,draft=D,k=4 --tasks gsm8k --limit 20
    """
    if find_spec("lm_eval") is None:
        raise MissingError("lm_eval is not installed: expected the package. pip install lm_eval")
    from lm_eval.__main__ import cli_evaluate

    register_model()
    sys.argv = ["lm-eval", *with_model(arguments or [])]
    cli_evaluate()
    for line in filter(None, (speculation_line(model.rounds) for model in OPENED)):
        say(line)


lm_eval.context_settings = {"ignore_unknown_options": True}  # type: ignore[attr-defined]


def with_model(arguments: list[str]) -> list[str]:
    """Return the harness's arguments, with the model `sps` where they name tasks but no model."""
    words = " ".join(["", *arguments])
    runs = re.search(" (--tasks|-t)", words) and not re.search(r" (--model\b(?!_)|-m)", words)
    return [*arguments, "--model", "sps"] if runs else arguments


def generation_options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments for `Pair.generation` from a task's `generation_kwargs`.

    `until` becomes `stop`, `MAX_TOKENS` is the limit where none is given, and `truncate` is true.
    Without `do_sample` (where it is absent: with no temperature above 0) the temperature is 0, and
    of sampling options processors alone stay. None and `NEUTRAL` are ignored. UsageError: any other
    unknown option.
    """
    kwargs = {n: v for n, v in kwargs.items() if v is not None and (n, v) not in NEUTRAL.items()}
    if unknown := [n for n in kwargs if n not in ("until", "do_sample", *LIMITS, *SAMPLING)]:
        raise UsageError(
            f"generation_kwargs {', '.join(unknown)}: expected until, do_sample, "
            f"{', '.join(dict.fromkeys((*LIMITS, *SAMPLING)))}. Leave them out"
        )
    until = kwargs.get("until") or []
    stop = [text for text in ([until] if isinstance(until, str) else until) if text]
    tokens = next((kwargs[name] for name in LIMITS if name in kwargs), MAX_TOKENS)
    sampling = {IN_CONFIGS.get(name, name): kwargs[name] for name in SAMPLING if name in kwargs}
    if not kwargs.get("do_sample", sampling.get("temperature", 0) > 0):
        sampling = {n: v for n, v in sampling.items() if n in PROCESSORS} | {"temperature": 0.0}
    sampling |= {"stop": stop} if stop else {}
    return {"max_new_tokens": int(tokens), "truncate": True, **sampling}


def speculation_line(rounds: Sequence[RoundRecord]) -> str:
    """Return `generation_metrics`' tau and, where known, alpha in a line; empty without rounds."""
    figures = generation_metrics(rounds, 0.0)
    if figures.block_efficiency is None:
        return ""
    alpha = "" if figures.alpha is None else f", alpha {figures.alpha:.3f}"
    tau = f"tau {figures.block_efficiency:.2f} tokens a round over {figures.rounds} rounds"
    return f"speculation: {tau}{alpha}"


def register_model() -> type:
    """Register `sps`, a new `PairModel` class, in lm_eval, which refuses a second; return it."""
    from lm_eval.api.registry import register_model
    from lm_eval.models.huggingface import HFLM

    model = type("SpsLM", (PairModel, HFLM), {})
    register_model("sps")(model)
    return model


class PairModel:
    """A pair as a model of the harness, by its model `hf`, which is the other base of its class.

    `options` are of `spsbench.load`: `target=...,draft=...,k=4,verifier=block`; the harness's
    `max_batch_size` and `device` do nothing here, and `batch_size` is of likelihoods.
    """

    cache_hook: Any  # the harness's, of answers
    tok_encode: Any

    def __init__(self, batch_size: int | str = 1, **options: Any) -> None:
        from spsbench.pair.load import load

        of_harness = ("max_batch_size", "device")
        self.pair = load(**{n: value for n, value in options.items() if n not in of_harness})
        target, tokenizer = self.pair.loaded.target, self.pair.loaded.tokenizer
        self.rounds: list[RoundRecord] = []
        self._generated = 0  # texts so far
        OPENED.append(self)
        shape = SimpleNamespace(config=target.config, device=target.device)  # weights: `_scorer`'s
        super().__init__(pretrained=shape, tokenizer=tokenizer, batch_size=batch_size)  # type: ignore[call-arg]

    @cached_property
    def _scorer(self) -> Any:
        from spsbench.audit.statistical.forward import Scorer

        return Scorer(self.pair.loaded.target, self.pair.loaded.vocab_size)

    def _model_call(self, inps: Any, **_: Any) -> Any:
        """Return [B, n, V] logits after [B, n] tokens: the target alone, all of it in float32."""
        import torch

        from spsbench.audit.statistical.forward import precise

        with torch.inference_mode(), precise(self._scorer.model):
            return self._scorer.model(inps).logits[..., : self._scorer.vocab_size]

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text after each context, in order; greedy unless a task samples.

        Each is a sample of its own; empty contexts become EOS. `rounds` and `cache_hook` get more.
        """
        texts = []
        for request in tqdm(requests, disable=disable_tqdm):
            context, kwargs = request.args
            self._generated += 1  # equal requests are samples of their own
            generation = self.pair.generation(
                self.tok_encode(context) or [self.pair.loaded.tokenizer.eos_token_id],
                sample=str(self._generated),
                **generation_options(kwargs),
            )
            for _ in generation:
                pass
            self.rounds += generation.record.rounds
            texts.append(generation.record.text)
            self.cache_hook.add_partial("generate_until", request.args, texts[-1])
        return texts
