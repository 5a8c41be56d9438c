"""Processors by path: rows as transformers' own processors make them, and texts as `generate` does.

Their exactness under speculation is in `tests/test_processed_exactness.py`.
"""

import random

import numpy as np
import pytest
import torch
from transformers import (
    GenerationConfig,
    GPTNeoXConfig,
    GraniteConfig,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    Olmo2Config,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from spsbench.audit.statistical.processed import process_logits
from spsbench.engines.eager import EagerLM
from spsbench.loop.constraint import DeadEndError
from spsbench.loop.decode import decode
from spsbench.loop.noise import PhiloxStream
from spsbench.loop.processors import TextProcessors
from spsbench.loop.sampling import Warp
from spsbench.loop.types import Draft, Limits, Scores
from spsbench.methods.drafters.model import ModelDrafter, NoDrafter
from spsbench.methods.drafters.ngram import NgramDrafter
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.match import Match
from spsbench.methods.verifiers.sps import Sps
from spsbench.settings.processors import Processors
from tests.oracles.models import ROTARY, WINDOWED, laws, tiny
from tests.variants import first

SIZE, START, EOS = 12, 4, frozenset({3})
TEXT = [1, 5, 2, 5, 7, 1, 5, 2, 5]  # the prompt is its first four
TREE = (torch.tensor([3, 7, 2, 5, 2]), torch.tensor([-1, -1, 0, 0, 1]))
WORDS = ((4,), (5, 7), (2, 5, 8))
EACH = {
    "biases": {"biases": ((2, 1.5), (9, -3.0))},
    "repetition": {"repetition": 1.4},
    "a reward": {"repetition": 0.8},
    "ngram": {"ngram": 3},
    "unigram": {"ngram": 1},
    "words": {"words": WORDS},
    "least": {"least": 8, "eos": EOS},
}
THEIRS = {n: v for n, v in EACH.items() if n != "unigram"} | {
    "all": {"biases": ((2, 1.5),), "repetition": 1.2, "ngram": 3, "words": WORDS, "least": 8,
            "eos": EOS},
}  # fmt: skip
OURS = {
    "frequency": {"frequency": 0.7},
    "presence": {"presence": -0.4},
    "of the answer": {"repetition": 1.4, "of_answer": True},
    "mixed": {**THEIRS["all"], "frequency": 0.3, "presence": 0.2},
}
FURTHER = {"neox": GPTNeoXConfig, "granite": GraniteConfig, "olmo2": Olmo2Config}
ARCHITECTURES = ("gpt2", *ROTARY, *FURTHER)


def model(architecture, **more):
    more |= {"attention": "eager", **WINDOWED.get(architecture, {})}
    if architecture not in FURTHER:
        return tiny(architecture, SIZE, **more)
    ROTARY[architecture] = FURTHER[architecture]
    try:
        return tiny(architecture, SIZE, **more)
    finally:
        del ROTARY[architecture]


def transformers_rows(raw, text, by):
    """[1, V] of one row of logits by transformers' own, in the order of its `generate`."""
    their = LogitsProcessorList()
    if by.biases:
        their.append(SequenceBiasLogitsProcessor([[[t], b] for t, b in by.biases]))
    if by.repetition != 1:
        their.append(RepetitionPenaltyLogitsProcessor(by.repetition))
    if by.ngram:
        their.append(NoRepeatNGramLogitsProcessor(by.ngram))
    if by.words:
        their.append(NoBadWordsLogitsProcessor([list(word) for word in by.words], None))
    if by.least:
        eos = torch.tensor([*by.eos])
        their.append(MinNewTokensLengthLogitsProcessor(START, by.least, eos))
    return their(torch.tensor([text]), raw[None].clone())


def drawn_logits(n, seed=0):
    return torch.randn(n, SIZE, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("name", EACH | THEIRS)
def test_each_row_is_transformers_row_after_its_own_path(name):
    by, raw = Processors(**(EACH | THEIRS)[name]), drawn_logits(6)
    draft = Draft(*TREE[:1], None, TREE[1])
    rows = TextProcessors(by, START).scores(Scores(raw, {}), TEXT, draft).logits
    for row, logits, path in zip(rows, raw, draft.paths, strict=True):
        torch.testing.assert_close(row, transformers_rows(logits, [*TEXT, *path], by)[0])


def test_a_bad_word_longer_than_the_text_is_as_transformers_has_it():
    by, raw = Processors(words=WORDS), drawn_logits(1)
    for text in ([5], [2, 5], [1, 2, 5]):
        row = TextProcessors(by, 0).along(raw, text)
        torch.testing.assert_close(row, transformers_rows(raw[0], text, by))
        assert np.array_equal(
            row.double().numpy(), process_logits(raw.double().numpy(), [text], 0, by)
        )


@pytest.mark.parametrize("name", [*EACH, *OURS])
def test_counts_are_those_of_the_text_whatever_was_drafted_before(name):
    by, rng = Processors(**(EACH | OURS)[name]), random.Random(name)
    kept, text = TextProcessors(by, START), TEXT[:START]
    for step in range(12):
        paths = [tuple(rng.choices(range(SIZE), k=depth)) for depth in (0, 1, 3)]
        raw = drawn_logits(3, step).double()
        whole = [[*text, *path] for path in paths]
        wanted = process_logits(raw.numpy(), whole, START, by)
        dead = np.isneginf(wanted).all(-1)
        wanted[dead] = raw.numpy()[dead]
        np.testing.assert_allclose(kept.rows(raw, text, paths).numpy(), wanted, atol=1e-12)
        text += rng.choices(range(SIZE), k=rng.randint(1, 3))
        if step == 6:  # another text: everything anew
            text = TEXT[:6]


@pytest.mark.parametrize("name", OURS)
def test_the_answers_counts_are_those_of_vllm(name):
    """Both penalties over the answer alone: - frequency * count - presence * (count > 0)."""
    by, raw = Processors(**OURS[name]), drawn_logits(1)[0].double()
    plain = Processors(
        **{n: v for n, v in OURS[name].items() if n not in ("frequency", "presence")}
    )
    row, without = (TextProcessors(p, START).along(raw[None], TEXT)[0] for p in (by, plain))
    counts = torch.bincount(torch.tensor(TEXT[START:]), minlength=SIZE)
    lower = by.frequency * counts + by.presence * (counts > 0)
    torch.testing.assert_close(row, without - lower)
    if by.of_answer:
        assert torch.equal(row != raw, counts > 0)


def test_a_mask_before_or_after_gives_one_row():
    by = Processors(**OURS["mixed"])
    raw, mask = drawn_logits(1).double(), torch.arange(SIZE) % 3 == 0
    before = TextProcessors(by, START).along(raw.masked_fill(mask, -torch.inf), TEXT)
    after = TextProcessors(by, START).along(raw, TEXT).masked_fill(mask, -torch.inf)
    assert torch.equal(before, after)


def test_logits_of_fewer_tokens_leave_out_the_others():
    by = Processors(**OURS["mixed"] | {"ngram": 0, "words": ()})
    wide = drawn_logits(1)
    narrow = TextProcessors(by, START).along(wide[:, :6], TEXT)
    assert torch.equal(narrow, TextProcessors(by, START).along(wide, TEXT)[:, :6])


def ours(target, by, prompt, tokens, drafter=None, verifier=None, temperature=0.0, seed=0):
    rounds = decode(
        prompt,
        target=EagerLM(target, vocab_size=SIZE),
        drafter=drafter or NoDrafter(),
        verifier=verifier or Sps(),
        schedule=Constant(3),
        warp=Warp(temperature),
        noise=PhiloxStream(seed, "x"),
        limits=Limits(tokens, by.eos),
        processors=by,
    )
    return [token for turn in rounds for token in turn.tokens]


def theirs(target, by, prompt, tokens):
    config = GenerationConfig(
        do_sample=False,
        max_new_tokens=tokens,
        eos_token_id=sorted(by.eos) or None,
        pad_token_id=0,
        sequence_bias=[[[t], b] for t, b in by.biases] or None,
        repetition_penalty=by.repetition,
        no_repeat_ngram_size=by.ngram,
        bad_words_ids=[list(word) for word in by.words] or None,
        min_new_tokens=by.least or None,
    )
    ids = torch.tensor([prompt])
    made = target.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return made[0, len(prompt) :].tolist()


@pytest.mark.parametrize("third", first(1, range(3)))
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_texts_are_those_of_transformers(architecture, third):
    """Every architecture, and every processor with a third of them; all pairs where it is slow."""
    target = model(architecture, dtype=torch.float32)
    draft = model(architecture, dtype=torch.float32, noise=0.3)
    for settings in list(THEIRS.values())[(ARCHITECTURES.index(architecture) + third) % 3 :: 3]:
        by = Processors(**settings)
        wanted = theirs(target, by, TEXT, 24)
        assert ours(target, by, TEXT, 24) == wanted
        drafters = ModelDrafter(EagerLM(draft, vocab_size=SIZE)), NgramDrafter(2, 1)
        for drafter, verifier in zip(drafters, (Sps(), Match()), strict=True):
            assert ours(target, by, TEXT, 24, drafter, verifier) == wanted


@pytest.mark.parametrize("name", THEIRS)
def test_the_first_token_is_drawn_from_transformers_distribution(name):
    target, by = tiny("llama", SIZE), Processors(**THEIRS[name])
    raw = laws(target, TEXT)[-1:]
    wanted = transformers_rows(raw[0], TEXT, by).softmax(-1)
    assert (Warp()(TextProcessors(by, START).along(raw, TEXT)) - wanted).abs().max() < 1e-6


def test_a_text_of_which_all_tokens_are_banned_ends_with_the_reason():
    target = tiny("llama", SIZE)
    by = Processors(ngram=1)  # after as many tokens as there are, each would be a second time
    with pytest.raises(DeadEndError, match=r"all tokens are banned after 9 tokens of output"):
        ours(target, by, TEXT[:4], 40, NgramDrafter(2, 1), Match())
