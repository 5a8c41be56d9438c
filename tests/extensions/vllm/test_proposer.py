"""The class that vLLM imports, under a stand-in of its hook: rows move, leave and return."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from spsbench.errors import UsageError
from spsbench.extensions.vllm.proposer import Proposer
from spsbench.extensions.vllm.rules import open_rule
from spsbench.loop.types import Scores
from spsbench.methods.drafters.ngram import count_agreeing
from spsbench.spec import Spec
from spsbench.store.atomic import replace_file

K, VOCAB, LONGEST = 3, 50, 120
RULES = ["suffix", "ngram:n=3,min_n=1,match=first", "copy", "hybrid:first=suffix,then=copy,least=2"]


@pytest.fixture
def rng():
    return np.random.default_rng(1)


def proposer_of(vocab=VOCAB, longest=LONGEST, **options):
    config = SimpleNamespace(additional_config={"spsbench": options})
    config.speculative_config = SimpleNamespace(num_speculative_tokens=K)
    config.scheduler_config = SimpleNamespace(max_num_seqs=4)
    config.model_config = SimpleNamespace(max_model_len=longest, get_vocab_size=lambda: vocab)
    return Proposer(config)


def texts(rng):
    """Return [prompt, answer] pairs that repeat themselves; the last is the first once more."""
    pairs = []
    for _ in range(11):
        parts = rng.integers(0, VOCAB, (3, 6)).tolist()
        tokens = [token for i in rng.integers(0, 3, 10) for token in parts[i]]
        pairs.append((tokens[:20], tokens[20:]))
    return [*pairs, pairs[0]]


def serve(proposer, pairs, rng, lost=0.0):
    """Rounds (position, drafted, accepted) of texts in rows that move; drafts may get lost."""
    rounds, at, pending = [[] for _ in pairs], [0] * len(pairs), [[] for _ in pairs]
    while unended := [i for i, (_, answer) in enumerate(pairs) if at[i] < len(answer)]:
        batch = [int(i) for i in rng.permutation(unended)[:4]]
        sampled, rows, lengths = [], np.zeros((4, LONGEST), np.int32), np.zeros(4, np.int32)
        for row, i in enumerate(batch):
            prompt, answer = pairs[i]
            accepted = count_agreeing(pending[i], answer, at[i])
            rounds[i] += [(at[i], len(pending[i]), accepted)] if pending[i] else []
            sampled.append(answer[at[i] : at[i] + accepted + 1])
            at[i] += len(sampled[-1])
            whole = prompt + answer[: at[i]]
            rows[row, : len(whole)], lengths[row] = whole, len(whole)
        drafts = proposer.propose(sampled, lengths, rows, slot_mappings={})
        for i, draft in zip(batch, drafts, strict=True):
            pending[i] = draft if rng.random() >= lost else []
    return rounds


def walked(spec, prompt, answer, positions=None):
    """Return the rounds of a drafter of its own, at its own positions or at those of others."""
    drafter, rounds, at = open_rule(Spec.parse(spec)), [], 1
    drafter.begin(prompt, Scores(torch.empty(0), {}))
    while at < len(answer):
        chain = list(drafter.proposals(prompt + answer[:at], (K,))[0][:K])
        accepted = count_agreeing(chain, answer, at)
        rounds += [(at, len(chain), accepted)] if chain else []
        at += 1 if positions else accepted + 1
    return [r for r in rounds if not positions or r[0] in positions]


@pytest.mark.parametrize("spec", RULES)
def test_rounds_are_those_of_a_drafter_for_each_text(spec, rng):
    pairs = texts(rng)
    rounds = serve(proposer_of(drafter=spec), pairs, rng)
    assert rounds == [walked(spec, *pair) for pair in pairs]


def test_texts_whose_draft_is_lost_as_by_a_preemption_are_found_again(rng):
    pairs = texts(rng)
    rounds = serve(proposer_of(drafter="suffix"), pairs, rng, lost=0.3)
    for pair, of_text in zip(pairs, rounds, strict=True):
        assert of_text == walked("suffix", *pair, positions=[at for at, *_ in of_text])


def test_a_script_is_read_anew_and_its_drafts_are_cut_to_what_a_server_survives(tmp_path):
    path = tmp_path / "script.json"
    proposer = proposer_of(script=str(path))
    about = json.loads(path.read_bytes())
    assert about == {"k": K, "vocab": VOCAB, "texts": []}
    rows = np.array([[4, 5, 6, 9, 9], [4, 5, 9, 9, 9]], np.int32)
    table = [[[4, 5], [[], [2] * 9, [3, VOCAB, 3]]], [[4, 5, 6], [[], [8], [-1]]]]
    replace_file(path, json.dumps(about | {"texts": table}).encode())
    assert proposer.propose([[9]] * 2, np.array([4, 3]), rows) == [[8], [2] * K]  # longest prompt
    assert proposer.propose([[9]] * 2, np.array([5, 4]), rows) == [[], [3]]
    assert proposer.propose([[]], np.array([4]), rows) == [[]]
    path.write_text("{")
    assert proposer.propose([[9]], np.array([4]), rows) == [[]]
    with pytest.raises(UsageError):
        proposer_of(script=str(path))
    with pytest.raises(UsageError):
        proposer_of(script=str(path), drafter="suffix")


BLOCKED = """
import sys
for name in ("typer", "rich", "transformers", "safetensors", "packaging", "httpx2"):
    sys.modules[name] = None
from spsbench.extensions.vllm.proposer import Spec, open_rule
for spec in sys.argv[1:]:
    open_rule(Spec.parse(spec))
"""


def test_vllms_environment_is_enough():
    subprocess.run([sys.executable, "-c", BLOCKED, *RULES], check=True)
