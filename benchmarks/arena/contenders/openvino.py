"""OpenVINO GenAI: its plain pipeline, and its speculative one with a draft model.

They are engines of their own, for each holds the target once more.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from openvino_genai import GenerationConfig, LLMPipeline, StreamerBase, StreamingStatus

from arena.contenders.contender import Contender, Setting, Turn

HINTS = {"float32": "f32", "bfloat16": "bf16"}
QUANTISED: dict[
    str, dict[str, Any]
] = {  # as its own exporter has them by default, but for the group
    "int8": {"bits": 8, "sym": True},
    "int4": {"bits": 4, "sym": True, "group_size": 32, "ratio": 1.0},
}


def convert(setting: Setting) -> None:
    """Both models by optimum-intel, in the measurement's dtype, with their tokenizers.

    The speculative pipeline wants a tokenizer in both folders although it is fed ids.
    """
    for name, source in (("target", setting.target), ("draft", setting.draft)):
        folder = setting.converted("openvino") / name
        if not (folder / "openvino_detokenizer.xml").exists():
            _export(source, folder, setting)


def _export(source: str, folder: Path, setting: Setting) -> None:
    from openvino_tokenizers import convert_tokenizer
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig
    from transformers import AutoTokenizer

    how: dict[str, Any] = {}  # as saved
    if setting.weights:
        how["ov_config"] = OVConfig(quantization_config=QUANTISED[setting.weights])
    elif setting.dtype == "float32":
        how["ov_config"] = OVConfig(dtype="fp32")
    main_export(source, output=folder, task="text-generation-with-past", **how)
    tokenizer = AutoTokenizer.from_pretrained(source)
    for model, name in zip(
        convert_tokenizer(tokenizer, with_detokenizer=True),
        ("openvino_tokenizer.xml", "openvino_detokenizer.xml"),
        strict=True,
    ):
        openvino.save_model(model, folder / name)


class Clock(StreamerBase):  # type: ignore[misc]
    """Notes when each block of tokens came."""

    def __init__(self) -> None:
        super().__init__()
        self.came: list[tuple[int, float]] = []

    def write(self, tokens: int | list[int]) -> StreamingStatus:
        """One block."""
        self.came.append((len(tokens) if isinstance(tokens, list) else 1, time.perf_counter()))
        return StreamingStatus.RUNNING

    def end(self) -> None:
        """Nothing is left to do."""


class OpenVino(Contender):
    """`plain` or `speculative`; greedy."""

    def __init__(self, kind: str) -> None:
        self._speculative = kind == "speculative"

    def load(self, setting: Setting) -> None:
        """One pipeline on the CPU, its precision hint the dtype of the measurement."""
        if setting.temperature > 0:
            raise ValueError("only greedy decoding is measured on OpenVINO: --temperature 0")
        self._k = setting.k
        self._threads = setting.threads or setting.cores
        hints = {
            "INFERENCE_PRECISION_HINT": HINTS[setting.dtype],
            "INFERENCE_NUM_THREADS": self._threads,
        }
        folder = setting.converted("openvino")
        extra: dict[str, Any] = {}
        if self._speculative:
            extra["draft_model"] = openvino_genai.draft_model(folder / "draft", "CPU", **hints)
        self._pipeline = LLMPipeline(folder / "target", "CPU", **hints, **extra)
        config = json.loads((folder / "target" / "config.json").read_text())
        self._end = config["vocab_size"] - 1  # it insists on an end token, and then ignores it

    def arms(self) -> Sequence[str]:
        """One of the two."""
        return ("sps",) if self._speculative else ("ars",)

    def generate(self, arm: str, prompt: list[int], tokens: int) -> Turn:
        """The prefill is in the first block."""
        turn, _ = self._run(prompt, tokens)
        return turn

    def _run(self, prompt: list[int], tokens: int) -> tuple[Turn, Any]:
        clock, config = Clock(), GenerationConfig()
        config.max_new_tokens, config.do_sample, config.ignore_eos = tokens, False, True
        config.set_eos_token_id(self._end)
        if self._speculative:
            config.num_assistant_tokens = self._k
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        began = time.perf_counter()
        result = self._pipeline.generate(ids, config, clock)
        ends = [began, *(at for _, at in clock.came)]
        blocks = [
            (count, at - before) for (count, at), before in zip(clock.came, ends, strict=False)
        ]
        return Turn(list(result.tokens[0]), blocks), result

    def steps(self, prompt: list[int], repeats: int) -> dict[str, list[float]]:
        """From the pipeline's own clocks; the first pass of each model is a prefill."""
        tokens = repeats * (self._k + 1 if self._speculative else 1) + 1
        turn, result = self._run(prompt, tokens)
        if not self._speculative:
            return {"one": [seconds for _, seconds in turn.blocks[1:]]}
        models = result.extended_perf_metrics
        block, draft = (
            [1e-6 * float(d) for d in metrics.raw_metrics.m_durations[1:]]
            for metrics in (models.main_model_metrics, models.draft_model_metrics)
        )
        return {"block": block[:-1] or block, "draft": draft}  # the last block is a shorter one

    def notes(self) -> dict[str, Any]:
        """Threads and versions."""
        return {
            "threads": self._threads,
            "openvino": openvino.__version__,
            "openvino-genai": openvino_genai.__version__,
        }
