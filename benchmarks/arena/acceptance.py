"""How often a draft agrees with its target, and the scale that decides it, by bisection."""

import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

TAU, TOLERANCE, K = 3.5, 0.2, 4
PROMPTS, PROMPT_TOKENS, TOKENS = 8, 48, 32  # what the acceptance is measured on
TRIES = 9


@dataclass
class Acceptance:
    """How well the draft agrees, measured along the target's greedy texts in bfloat16."""

    scale: float  # of what the later layers add
    tau: float  # tokens a pass at K = 4, greedy
    agreement: float  # of the two argmaxes
    alpha: float  # mean of sum_x min(p, q) at temperature 1
    entropy: float  # nats, of the target's law at temperature 1
    distinct: float  # tokens of a text that are not in it twice: near 1, texts do not repeat


def acceptance(target: PreTrainedModel, draft: PreTrainedModel, scale: float) -> Acceptance:
    """Along greedy texts: a draft is kept as far as both argmaxes agree, so tau is exact there."""
    source = torch.Generator().manual_seed(1)
    shape = PROMPTS, PROMPT_TOKENS
    prompts = torch.randint(target.config.vocab_size, shape, generator=source)
    texts = target.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=TOKENS, do_sample=False
    )
    with torch.inference_mode():
        p, q = (m(input_ids=texts[:, :-1]).logits[:, PROMPT_TOKENS - 1 :] for m in (draft, target))
    agree = p.argmax(-1) == texts[:, PROMPT_TOKENS:]
    p, q = p.float().softmax(-1), q.float().softmax(-1)
    entropy = -(q * q.clamp_min(1e-30).log()).sum(-1).mean()
    overlap = torch.minimum(p, q).sum(-1).mean()
    distinct = sum(len(set(text)) for text in texts[:, PROMPT_TOKENS:].tolist()) / agree.numel()
    return Acceptance(
        scale, block_efficiency(agree.tolist(), K), float(agree.float().mean()),
        float(overlap), float(entropy), distinct,
    )  # fmt: skip


def block_efficiency(agree: list[list[bool]], k: int) -> float:
    """Tokens a pass when slot t of a text is kept wherever `agree[text][t]`."""
    tokens = passes = 0
    for text in agree:
        at = 0
        while at + k < len(text):  # a last round that the end would cut is left out
            kept = next((i for i in range(k) if not text[at + i]), k)
            at, tokens, passes = at + kept + 1, tokens + kept + 1, passes + 1
    return tokens / passes


def bisect(target: PreTrainedModel, draft: PreTrainedModel, late: list[Tensor]) -> Acceptance:
    """Scale the later layers until tau is near `TAU`; the nearest try is left in place."""
    originals = [weight.clone() for weight in late]
    low, high = math.log(3e-3), math.log(0.3)  # tau falls as the later layers count for more
    best: Acceptance | None = None
    for _ in range(TRIES):
        scale = math.exp((low + high) / 2)
        rescale(late, originals, scale)
        found = acceptance(target, draft, scale)
        print(f"scale {scale:.4f}: {found}", file=sys.stderr)
        if best is None or abs(found.tau - TAU) < abs(best.tau - TAU):
            best = found
        if abs(found.tau - TAU) <= TOLERANCE:
            break
        low, high = ((low + high) / 2, high) if found.tau > TAU else (low, (low + high) / 2)
    if best is None:
        raise RuntimeError("no scale was tried")
    rescale(late, originals, best.scale)
    return best


def rescale(weights: list[Tensor], originals: list[Tensor], scale: float) -> None:
    """Set each weight to `scale` times its original."""
    for weight, original in zip(weights, originals, strict=True):
        weight.copy_(original * scale)
