"""The model `sps` of lm-evaluation-harness."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from spsbench.audit.statistical.forward import Scorer
from spsbench.errors import UsageError
from spsbench.extensions.lm_eval.generation import generation_options, speculation_line
from spsbench.pair.load import load
from spsbench.settings.records import RoundRecord

OPENED: list["PairModel"] = []


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
        batch_size: of the harness; texts are generated one by one.
        max_batch_size: likewise.
        device: of the harness; ours is an option of models.
        options: of `spsbench.load`: `target=...,draft=...,k=4,verifier=block`.
    """

    cache_hook: Any  # the harness's, of answers

    def __init__(
        self, batch_size: Any = None, max_batch_size: Any = None, device: Any = None, **options: Any
    ) -> None:
        super().__init__()
        self.pair = load(**options)
        self.tokenizer = self.pair.loaded.tokenizer
        self.rounds: list[RoundRecord] = []
        self._scorer: Scorer | None = None
        self._generated = 0  # texts so far
        OPENED.append(self)

    @property
    def eot_token_id(self) -> int:
        """Return an id that ends a text."""
        return int(min(self.pair.loaded.eos, default=self.tokenizer.eos_token_id))

    @property
    def prefix_token_id(self) -> int:
        """Return the id before a text without a context."""
        begin = self.tokenizer.bos_token_id
        return self.eot_token_id if begin is None else int(begin)

    @property
    def tokenizer_name(self) -> str:
        """Return the name by which the harness keeps prompts of a chat."""
        return str(self.tokenizer.name_or_path).replace("/", "__")

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Return a conversation as the text of the model's template."""
        text: str = self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return text

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **more: Any
    ) -> list[int]:
        """Return the ids of a text, with those that the tokenizer adds unless told otherwise."""
        begin = self.tokenizer.bos_token
        if add_special_tokens is None:
            add_special_tokens = begin is None or not string.startswith(begin)
        ids: list[int] = self.tokenizer.encode(string, add_special_tokens=add_special_tokens)
        return ids

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
            deque(generation, maxlen=0)
            text = generation.record.text
            self.rounds += generation.record.rounds
            texts.append(text)
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    def _loglikelihood_tokens(
        self, requests: Sequence[Any], disable_tqdm: bool = False, **more: Any
    ) -> list[tuple[float, bool]]:
        """Return log-probability and greediness of each (texts, context ids, continuation ids)."""
        answers = []
        for texts, context, continuation in tqdm(requests, disable=disable_tqdm):
            answer = self._score(context, continuation)
            answers.append(answer)
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, answer)
        return answers

    def _score(self, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
        """Return a continuation's log-probability in nats, and whether each token is likeliest."""
        if self._scorer is None:
            self._scorer = Scorer(self.pair.loaded.target, self.pair.loaded.vocab_size)
        limit = self._scorer.limit
        room = len(context) if limit is None else limit + 1 - len(continuation)
        if room < 1:
            raise UsageError(
                f"a continuation of {len(continuation)} tokens: expected fewer than the target's "
                f"context holds, {limit}. Leave the task out"
            )
        logits = self._scorer.logits(list(context)[-room:], list(continuation)).astype(np.float64)
        shifted = logits - logits.max(-1, keepdims=True)
        logs = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        chosen = logs[np.arange(len(logs)), list(continuation)]
        return float(chosen.sum()), bool((logits.argmax(-1) == np.array(continuation)).all())

    def loglikelihood_rolling(
        self, requests: Sequence[Any], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-probability of each text, in windows as long as the target's context."""
        from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

        sums = []
        for request in tqdm(requests, disable=disable_tqdm):
            (text,) = request.args
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.pair.loaded.limit or 1 << 20,
                context_len=1,
            )
            parts = [self._score(*make_disjoint_window(window))[0] for window in windows]
            sums.append(sum(parts))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, sums[-1])
        return sums

    def acceptance(self) -> str:
        """Return what the generations show of the draft, in a line; empty without any."""
        return speculation_line(self.rounds)
