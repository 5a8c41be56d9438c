"""Greedy texts with heads are the target's own, token for token: chains and trees."""

import pytest
import torch

from spsbench.engines.eager import EagerLM
from spsbench.messages import ignore
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from tests.decoding import output, rounds_of
from tests.heads import writers
from tests.heads.stage import HeadSite
from tests.oracles.models import tiny

PROMPT = [1, 2, 3, 4, 5]
SIZE = {"vocab": 40, "scale": 4.0, "dtype": torch.float32}
BEST = {"width": 3, "nodes": 10}
WAYS = (({}, Sps()), ({"sampled": False}, Match()), ({"shape": "2x2x1"}, Match()), (BEST, Match()))


def texts_of(architecture, tmp_path, ways, tokens, prepare=ignore, session=EagerLM):
    depth = "n_layer" if architecture == "gpt2" else "num_hidden_layers"
    target = tiny(architecture, **SIZE, **{depth: 4})
    with torch.no_grad():
        drawn = torch.randint(0, SIZE["vocab"], (6, 80), generator=torch.Generator().manual_seed(3))
        plain = target.generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT)),
            max_new_tokens=tokens,
            do_sample=False,
        )[0].tolist()
    fitted = writers.fitted(tmp_path / "eagle", target, [*drawn.tolist(), plain])
    random = writers.eagle3(tmp_path / "eagle3", target)
    state = writers.mlp(tmp_path / "mlp", target)
    prepare(target)
    blocks = writers.falcon(tmp_path / "falcon", target)
    accepted = set()
    answers_of = {fitted: {}, random: {"features": "1-2-3"}, state: {}, blocks: {}}
    for folder, answers in answers_of.items():
        site = HeadSite(folder, target, **answers)
        for shape, rule in ways:
            drafter = site.drafter(**shape)
            lm = session(target, layers=drafter.layers)
            rounds = rounds_of(lm, drafter, tokens, prompt=PROMPT, k=3, verifier=rule, seed=1)
            assert output(rounds) == plain[len(PROMPT) :]
            accepted |= {turn.accepted for turn in rounds}
    return accepted


def test_a_greedy_text(tmp_path):
    assert len(texts_of("llama", tmp_path, (WAYS[3],), 20)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "qwen2", "qwen3"])
def test_greedy_texts(tmp_path, architecture):
    assert len(texts_of(architecture, tmp_path, WAYS, 300)) > 1
