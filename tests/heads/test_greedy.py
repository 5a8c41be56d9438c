"""Greedy texts with heads are the target's own, token for token: chains and trees."""

import pytest
import torch

from spsbench.engines.eager import EagerLM
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from tests.decoding import output, rounds_of
from tests.heads import writers
from tests.heads.stage import HeadSite
from tests.oracles.models import tiny

PROMPT, TOKENS = [1, 2, 3, 4, 5], 300
SIZE = {"vocab": 40, "scale": 4.0, "dtype": torch.float32}
BEST = {"width": 3, "nodes": 10}
WAYS = (({}, Sps()), ({"sampled": False}, Match()), ({"shape": "2x2x1"}, Match()), (BEST, Match()))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2", "qwen3"])
def test_greedy_texts(tmp_path, architecture):
    depth = "n_layer" if architecture == "gpt2" else "num_hidden_layers"
    target = tiny(architecture, **SIZE, **{depth: 4})
    with torch.no_grad():
        drawn = torch.randint(0, SIZE["vocab"], (6, 80), generator=torch.Generator().manual_seed(3))
        plain = target.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT)),
            max_new_tokens=TOKENS,
            do_sample=False,
        )[0].tolist()
    fitted = writers.fitted(tmp_path / "eagle", target, [*drawn.tolist(), plain])
    random = writers.eagle3(tmp_path / "eagle3", target)
    state = writers.mlp(tmp_path / "mlp", target)
    blocks = writers.falcon(tmp_path / "falcon", target)
    accepted = set()
    answers_of = {fitted: {}, random: {"features": "1-2-3"}, state: {}, blocks: {}}
    for folder, answers in answers_of.items():
        site = HeadSite(folder, target, **answers)
        for shape, rule in WAYS:
            drafter = site.drafter(**shape)
            lm = EagerLM(target, layers=drafter.layers)
            rounds = rounds_of(lm, drafter, TOKENS, prompt=PROMPT, k=3, verifier=rule, seed=1)
            assert output(rounds) == plain[len(PROMPT) :]
            accepted |= {turn.accepted for turn in rounds}
    assert len(accepted) > 1
