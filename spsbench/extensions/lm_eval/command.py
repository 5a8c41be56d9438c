"""`sps lm-eval`: the command line of lm-evaluation-harness, and its model `sps`."""

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from typing import Annotated, Any

import numpy as np
import typer
from tqdm import tqdm

from spsbench.cli import options as o
from spsbench.cli.output.terminal import say
from spsbench.errors import MissingError, UsageError
from spsbench.metrics.rates import metrics
from spsbench.settings.records import RoundRecord

MOST_TOKENS = 256  # of a text whose task gives no limit
LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed")
NEUTRAL = dict.fromkeys(("num_beams", "num_return_sequences"), 1) | {"use_cache": True, "top_k": -1}
NEUTRAL |= dict.fromkeys(("repetition_penalty", "length_penalty"), 1)
NEUTRAL |= dict.fromkeys(("presence_penalty", "frequency_penalty", "no_repeat_ngram_size"), 0)
OPENED: list["PairModel"] = []


def lm_eval(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENT...", help="Arguments of lm_eval, such as --tasks gsm8k."),
    ] = None,
    debug: o.Debug = False,
) -> None:
    """Run lm-evaluation-harness with the model sps; arguments are those of lm_eval.

    sps lm-eval --model_args target=T,draft=D,k=4 --tasks gsm8k --limit 20
    """
    if find_spec("lm_eval") is None:
        raise MissingError("lm_eval is not installed: expected the package. pip install lm_eval")
    from lm_eval.__main__ import cli_evaluate

    register()
    sys.argv = ["lm-eval", *with_model(arguments or [])]
    cli_evaluate()
    for line in filter(None, (speculation_line(model.rounds) for model in OPENED)):
        say(line)


lm_eval.context_settings = {"ignore_unknown_options": True}  # type: ignore[attr-defined]


def with_model(arguments: list[str]) -> list[str]:
    """Return arguments of the harness that name a model: `sps`, where they name none and run."""
    words = " ".join(arguments)
    runs = re.search(r"(^| )(--tasks|-t)", words) and not re.search(
        r"(^| )(--model\b(?!_)|-m)", words
    )
    return [*arguments, "--model", "sps"] if runs else arguments


def generation_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a generation from a task's `generation_kwargs`.

    Raises:
        UsageError: one that is not known, with a value that would change a text.
    """
    asked = {n: v for n, v in asked.items() if v is not None and (n, v) not in NEUTRAL.items()}
    if unknown := [n for n in asked if n not in ("until", "do_sample", *LIMITS, *SAMPLING)]:
        raise UsageError(
            f"generation_kwargs {', '.join(unknown)}: expected until, do_sample, "
            f"{', '.join((*LIMITS, *SAMPLING))}. Leave them out"
        )
    until = asked.get("until") or []
    stop = [text for text in ([until] if isinstance(until, str) else until) if text]
    tokens = next((asked[name] for name in LIMITS if name in asked), MOST_TOKENS)
    sampling = {name: asked[name] for name in SAMPLING if name in asked}
    if not asked.get("do_sample", sampling.get("temperature", 0) > 0):
        sampling = {"temperature": 0.0}
    sampling |= {"stop": stop} if stop else {}
    return {"max_new_tokens": int(tokens), "truncate": True, **sampling}


def speculation_line(rounds: Sequence[RoundRecord]) -> str:
    """Return tau and alpha of all rounds in a line; empty without rounds."""
    figures = metrics(rounds, 0.0)
    if figures.block_efficiency is None:
        return ""
    alpha = "" if figures.alpha is None else f", alpha {figures.alpha:.3f}"
    tau = f"tau {figures.block_efficiency:.2f} tokens a round over {figures.rounds} rounds"
    return f"speculation: {tau}{alpha}"


def register() -> type:
    """Register the model `sps` in the harness, and return its class."""
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model

    model = type("SpsLM", (PairModel, TemplateLM), {})
    register_model("sps")(model)
    return model


class PairModel:
    """A pair with the methods of the harness's `TemplateLM`, which is the other base of its class.

    Args:
        options: of `spsbench.load`: `target=...,draft=...,k=4,verifier=block`; the harness's
            `batch_size`, `max_batch_size` and `device` do nothing here.
    """

    cache_hook: Any  # the harness's, of answers

    def __init__(self, **options: Any) -> None:
        from spsbench.pair.load import load

        super().__init__()
        of_harness = ("batch_size", "max_batch_size", "device")
        self.pair = load(**{n: value for n, value in options.items() if n not in of_harness})
        self.tokenizer = self.pair.loaded.tokenizer
        self.tokenizer_name = str(self.tokenizer.name_or_path).replace("/", "__")
        begin = self.tokenizer.bos_token_id
        self.eot_token_id = int(min(self.pair.loaded.eos, default=self.tokenizer.eos_token_id))
        self.prefix_token_id = self.eot_token_id if begin is None else int(begin)
        self.rounds: list[RoundRecord] = []
        self._generated = 0  # texts so far
        OPENED.append(self)

    @cached_property
    def _scorer(self) -> Any:
        from spsbench.audit.statistical.forward import Scorer

        return Scorer(self.pair.loaded.target, self.pair.loaded.vocab_size)

    def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> Any:
        """Return a conversation as the text of the model's template."""
        how = {"add_generation_prompt": add_generation_prompt, "tokenize": False}
        how["continue_final_message"] = not add_generation_prompt
        return self.tokenizer.apply_chat_template(chat_history, **how)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> Any:
        """Return the ids of a text, with those that the tokenizer adds unless told otherwise."""
        begin = self.tokenizer.bos_token
        if add_special_tokens is None:
            add_special_tokens = begin is None or not string.startswith(begin)
        return self.tokenizer.encode(string, add_special_tokens=add_special_tokens)

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue each context up to a stop string: greedily unless a task samples."""
        texts = []
        for request in tqdm(requests, disable=disable_tqdm):
            context, asked = request.args
            self._generated += 1  # equal requests are samples of their own
            generation = self.pair.generation(
                self.tok_encode(context) or [self.prefix_token_id],
                sample=str(self._generated),
                **generation_options(asked),
            )
            for _ in generation:
                pass
            self.rounds += generation.record.rounds
            texts.append(generation.record.text)
            self.cache_hook.add_partial("generate_until", request.args, texts[-1])
        return texts

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **_: Any) -> Any:
        """Return log-probability and greediness of each (texts, context ids, continuation ids)."""
        answers = []
        for texts, context, continuation in tqdm(requests, disable=disable_tqdm):
            answers.append(self._score(context, continuation))
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, answers[-1])
        return answers

    def _score(self, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
        """Return a continuation's log-probability in nats, and whether each token is likeliest."""
        limit = self._scorer.limit
        length = len(context) if limit is None else limit + 1 - len(continuation)
        if length < 1:
            raise UsageError(
                f"a continuation of {len(continuation)} tokens: expected fewer than the target's "
                f"context holds, {limit}. Leave the task out"
            )
        logits = self._scorer.logits(list(context)[-length:], list(continuation)).astype(np.float64)
        shifted = logits - logits.max(-1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        chosen = logs[np.arange(len(logs)), list(continuation)]
        return float(chosen.sum()), bool((logits.argmax(-1) == np.array(continuation)).all())

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """Return the log-probability of each text, in windows as long as the target's context."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        sums = []
        longest, prefix = self.pair.loaded.limit or 1 << 20, self.prefix_token_id
        for request in tqdm(requests, disable=disable_tqdm):
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            windows = get_rolling_token_windows(ids, prefix, longest, 1)
            sums.append(sum(self._score(*make_disjoint_window(window))[0] for window in windows))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, sums[-1])
        return sums
