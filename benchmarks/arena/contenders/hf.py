"""transformers' own `generate`: plain, static cache, compiled, assisted, prompt lookup."""

import copy
import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, CompileConfig, DynamicCache, GenerationConfig

from arena.contenders.contender import Contender, Setting, Turn, alternate, convert, fastest_threads

__all__ = ["Hf", "convert"]


class Clock:
    """A streamer that notes when each block of tokens came; the first it gets is the prompt."""

    def __init__(self) -> None:
        self.came: list[tuple[list[int], float]] = []

    def put(self, tokens: torch.Tensor) -> None:
        """One block."""
        self.came.append((tokens.flatten().tolist(), time.perf_counter()))

    def end(self) -> None:
        """Nothing is left to do."""


class Hf(Contender):
    """Both models from `from_pretrained`, nothing changed in them."""

    def load(self, setting: Setting) -> None:
        """Both, with as many threads as there are cores for now."""
        torch.set_num_threads(setting.threads or setting.cores)
        dtype = getattr(torch, setting.dtype)
        self._setting = setting
        self._target, self._draft = (
            AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval()
            for folder in (setting.target, setting.draft)
        )
        self._defaults = copy.deepcopy(self._draft.generation_config)

    def settle(self) -> None:
        """Take the thread count with the quickest single-token pass."""
        if self._setting.threads is None:
            ids = torch.arange(1)[None]
            with torch.inference_mode():
                fastest_threads(
                    range(1, self._setting.cores + 1),
                    torch.set_num_threads,
                    lambda: self._target(input_ids=ids, use_cache=False),
                )

    def arms(self) -> Sequence[str]:
        """All variants; the compiled one only where asked for."""
        compiled = ("ars-compiled",) if self._setting.compiled else ()
        return ("ars", "ars-static", *compiled, "sps", "sps-defaults", "lookup")

    def generate(self, arm: str, prompt: list[int], tokens: int) -> Turn:
        """`generate` under a streamer; its prefill is in the first block."""
        clock, ids = Clock(), torch.tensor([prompt])
        config = self._config(tokens)
        extra = self._variant(arm, config)
        torch.manual_seed(0)
        self._target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            streamer=clock,
            **extra,
        )
        ends = [at for _, at in clock.came]
        blocks = [
            (len(block), at - before)
            for (block, at), before in zip(clock.came[1:], ends, strict=False)
        ]
        return Turn([token for block, _ in clock.came[1:] for token in block], blocks)

    def _config(self, tokens: int) -> GenerationConfig:
        temperature = self._setting.temperature
        sampling: dict[str, Any] = {"do_sample": False}
        if temperature > 0:
            sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        return GenerationConfig(
            max_new_tokens=tokens, eos_token_id=None, pad_token_id=0, **sampling
        )

    def _variant(self, arm: str, config: GenerationConfig) -> dict[str, Any]:
        if arm in ("ars-static", "ars-compiled"):
            config.cache_implementation = "static"
            config.max_cache_len = self._setting.context
            config.disable_compile = arm == "ars-static"
            if arm == "ars-compiled":
                config.compile_config = CompileConfig(mode="default")
                config.compile_config._compile_all_devices = True  # else never on a CPU
            return {}
        if arm == "lookup":
            return {"prompt_lookup_num_tokens": self._setting.k}
        if arm in ("sps", "sps-defaults"):
            drafting = copy.deepcopy(self._defaults)  # where transformers reads these from
            if arm == "sps":
                drafting.num_assistant_tokens = self._setting.k
                drafting.num_assistant_tokens_schedule = "constant"
                drafting.assistant_confidence_threshold = 0.0
            self._draft.generation_config = drafting
            return {"assistant_model": self._draft}
        return {}

    @torch.inference_mode()
    def steps(self, prompt: list[int], repeats: int) -> dict[str, list[float]]:
        """Passes over a `DynamicCache` that is cropped after each, as assisted decoding does."""
        caches = [(model, DynamicCache()) for model in (self._target, self._draft)]
        for model, cache in caches:
            model(input_ids=torch.tensor([prompt]), past_key_values=cache, logits_to_keep=1)

        def score(which: int, count: int) -> None:
            model, cache = caches[which]
            ids = torch.tensor([prompt[:count]])
            model(input_ids=ids, past_key_values=cache, logits_to_keep=count)
            cache.crop(-count)

        block = self._setting.k + 1
        return alternate(
            repeats,
            one=lambda: score(0, 1),
            block=lambda: score(0, block),
            draft=lambda: score(1, 1),
        )

    def notes(self) -> dict[str, Any]:
        """Threads and versions."""
        return {
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
