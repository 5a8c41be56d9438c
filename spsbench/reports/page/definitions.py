"""What each figure of the page means, in the words of the glossary (docs/design.md)."""

from collections.abc import Mapping

DEFINITIONS: Mapping[str, str] = {
    "speedup": "Mean token time at K = 0 over that at K: same loop, prompts and engine, over the "
    "generations that both have.",
    "mean_token_time_ms": "Decode seconds over emitted tokens, in ms; the prefill is not in it.",
    "alpha": "Acceptance rate: the chance that a tested draft token is kept, "
    "the mean of sum over x of min(p, q).",
    "alpha_at": "Kept over tested at each position of a round.",
    "sibling_at": "Of trees: the first, second ... child of a node kept, over those looked at "
    "because none before it was kept.",
    "block_efficiency": "tau: emitted tokens over rounds, so tokens for each pass of the target.",
    "efficiency": "tau over K + 1 (of trees over their depth + 1): the share of the best possible "
    "round.",
    "loop_time_ms": "Seconds of a round: draft, target pass, verification.",
    "ttft_ms": "Time to the first token: until the first round ends, prefill included.",
    "draft_share": "Share of the decode time that the drafter takes.",
    "target_share": "Share of the decode time that the target's passes take.",
    "verify_share": "The rest of the decode time: warp, verification, bookkeeping.",
    "predicted_speedup": "What alpha, the tokens that each round drafted, the cost of a draft pass "
    "(c) and the growth of the target's pass (v) predict, with acceptances taken as independent "
    "(Leviathan et al. 2023); never above tau.",
    "predicted_ms": "The mean token time that a plan predicts from texts and a table of costs.",
    "predicted_tau": "tau that a plan predicts from texts, by replaying their rounds.",
    "horizon_time_ms": "Decode time until that many tokens are there, over the generations that "
    "got so far.",
    "quality": "What the task scores, as the field computes it; the mean over samples.",
    "interval": "95 % interval over samples, each left out in turn (jackknife); none over fewer "
    "than 8 samples, or where all are alike.",
    "n": "Good generations. Failures are counted apart and are in no figure.",
    "p50": "Half of the generations are faster.",
    "p90": "Nine of ten generations are faster.",
    "p99": "99 of 100 generations are faster.",
    "method": "ArS samples one token for each pass of the target (K = 0); SpS drafts K tokens a "
    "round and keeps what the rule allows.",
    "setting": "How laws are made of logits: temperature, top-k, top-p.",
    "category": "A category of the task's prompts.",
    "accepted": "Drafted, and kept by the rule.",
    "recovered": "The target's own token after a rejection.",
    "bonus": "The target's own token after all drafted ones were kept.",
    "plain": "The target's own token, in a round without a draft.",
}


def define(figure: str) -> str:
    """The definition of a figure of `Summary.figures`; empty where there is none."""
    return DEFINITIONS.get(figure) or DEFINITIONS.get(figure.partition(".")[0], "")
