"""EleutherAI's lm-evaluation-harness over a pair: texts by speculation, likelihoods by a pass."""
