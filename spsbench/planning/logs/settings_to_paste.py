"""A method of a log's answer as settings of engines that serve."""

import json
from collections.abc import Mapping
from typing import Any

from spsbench.methods.drafters.ngram import NgramDrafter
from spsbench.spec import Spec

NGRAM = NgramDrafter()


def engine_settings(drafter: str, k: int, *, model: bool) -> list[str]:
    """Return lines with vLLM's and llama.cpp's settings; none for what they cannot draft.

    Args:
        drafter: spec, or the name of a draft model.
        k: tokens a round.
        model: whether a model drafts.
    """
    if model:
        config: Mapping[str, Any] = {
            "method": "draft_model",
            "model": drafter,
            "num_speculative_tokens": k,
            "draft_sample_method": "probabilistic",
        }
        return [vllm(config), f"llama.cpp: --model-draft {drafter}.gguf --draft-max {k}"]
    spec = Spec.parse(drafter)
    args = dict(spec.args)
    if spec.name == "ngram":
        config = {
            "method": "ngram",
            "num_speculative_tokens": k,
            "prompt_lookup_max": args.get("n", NGRAM.n),
            "prompt_lookup_min": args.get("min_n", NGRAM.min_n),
        }
        first = args.get("match", NGRAM.match) == "first"
        line = vllm(config)
        return [line if first else f"{line} (it takes the first match: see ngram:match=first)"]
    if spec.name == "suffix":
        config = {
            "method": "suffix",
            "num_speculative_tokens": k,
            "suffix_decoding_max_spec_factor": args.get("factor", 1.0),
            "suffix_decoding_min_token_prob": args.get("least", 0.1),
            "suffix_decoding_max_cached_requests": 10_000 if args.get("shared") else 0,
        }
        return [vllm(config)]
    return []


def vllm(config: Mapping[str, Any]) -> str:
    """Return the flag of `vllm serve`."""
    return f"vLLM: --speculative-config '{json.dumps(config)}'"
