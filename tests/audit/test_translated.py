"""Pairs with two tokenizers, on real models: chosen, exact, and a wrong distribution is found."""

from typing import Any
from unittest.mock import patch

import pytest
import torch

from spsbench.audit.statistical.finding import AuditVerdict
from spsbench.audit.statistical.texts import NamedPrompt
from spsbench.audit.verify import audit_pair
from spsbench.errors import DataError
from spsbench.messages import lines_to
from spsbench.methods.drafters.cross_tokenizer import SharedTokensDrafter
from spsbench.models.cache import ModelCache
from spsbench.models.translation.vocabulary import SharedTokens, Vocabularies, Vocabulary
from spsbench.pair.load import load
from spsbench.settings.execution import Access
from spsbench.spec import Spec
from tests.folders import save
from tests.oracles.models import tiny
from tests.tongues import of_bytes, of_marks

WORDS = ("the cat sat", "a dog in the house", "over the hill")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target, and a draft of another tokenizer that often means the same token as it."""
    place = tmp_path_factory.mktemp("pair")
    ours, theirs = of_bytes(), of_marks()
    target = tiny("llama", vocab=len(ours), dtype=torch.float32)
    draft = tiny("llama", vocab=len(theirs), dtype=torch.float32, noise=0.1)
    pairs = Vocabularies(*map(Vocabulary.of, (ours, theirs))).overlap.pairs
    with torch.no_grad():
        for part in ("get_input_embeddings", "get_output_embeddings"):
            here, there = getattr(target, part)().weight, getattr(draft, part)().weight
            there[list(pairs.values())] = here[list(pairs)]
        for (_, here), (_, there) in zip(
            target.model.layers.named_parameters(),
            draft.model.layers.named_parameters(),
            strict=True,
        ):
            there.copy_(here)
    made = {"target": save(place / "target", target, ours)}
    made |= {"draft": save(place / "draft", draft, theirs)}
    return {name: str(folder) for name, folder in made.items()}


def pair(folders, said=None, **asked):
    common = {**folders, "k": 3, "max_new_tokens": 32, "engine": "eager"}
    with lines_to(None if said is None else said.append):
        return load(**common | asked, offline=True)


def test_the_way_is_chosen_and_told(folders):
    said = []
    sampled = pair(folders, said)
    assert sampled.cell.noise_key == "tli/sps/constant:lookahead=3"
    assert any("tokens are among the target's" in line for line in said)
    assert any("drafting by the tokens that both models have (`drafter` tli)" in s for s in said)
    greedy, _ = sampled.configured(temperature=0.0)
    assert greedy.noise_key == "slem/match/constant:lookahead=3"
    asked, _ = sampled.configured(temperature=0.0, verifier="block")
    assert asked.noise_key == "tli/block/constant:lookahead=3"
    few = SharedTokens({1: 1}, 9, 9, text=0.2)
    with patch("spsbench.models.translation.vocabulary.Vocabularies.overlap", few):
        assert pair(folders).cell.drafter.name == "slem"


@pytest.mark.parametrize("drafter", ["tli", pytest.param("slem", marks=pytest.mark.slow)])
def test_greedy_texts_are_those_of_the_target(folders, drafter):
    both = pair(folders, drafter=drafter, temperature=0.0, max_new_tokens=20)
    for word in WORDS[:2]:
        found = both.compare(word)
        assert found.identical
        assert sum(r.drafted for r in found.sps.record.rounds) > 0


def test_what_was_drafted_is_recorded_in_the_targets_tokens(folders):
    made = pair(folders, decoder="native:laws=true").generate(WORDS[0])
    laws = made.record.laws
    assert laws is not None
    size = len(of_bytes())
    assert all(0 <= token < size for each in laws for token in each.tokens)
    assert all(0 < p <= 1 for each in laws for p in each.p)


def audited(folders, drafter, most, bias):
    both = pair(folders, drafter=drafter)
    return audit_pair(both.cell, both.loaded, prompts(both.loaded), bias=bias, most=most)


def prompts(loaded):
    return [NamedPrompt(word, tuple(loaded.tokenizer.encode(word))) for word in WORDS]


def test_an_audit_of_two_tokenizers_holds(folders):
    found = audited(folders, "tli", 250, 0.4)
    assert found.verdict is AuditVerdict.HELD, found.line


class Shuffled(SharedTokensDrafter):
    """The distribution's columns are in the order in which the tokenizer lists its tokens."""

    def draft(self, *given: Any) -> Any:
        made = super().draft(*given)
        return made if made.probs is None else type(made)(made.tokens, made.probs.roll(1, -1))


@pytest.mark.slow
def test_a_wrong_distribution_is_found(folders):
    with patch("spsbench.methods.drafters.cross_tokenizer.SharedTokensDrafter", Shuffled):
        found = audited(folders, "tli", 6_000, 0.05)
    assert found.verdict is AuditVerdict.BIAS, found.line


def test_what_cannot_work_is_refused_with_its_reason(folders):
    cell = pair(folders).cell.but(drafter=Spec("model"))
    with pytest.raises(DataError, match=r"expected one vocabulary. Draft in its own tokens with"):
        ModelCache(Access(offline=True)).load(cell)
    none = SharedTokens({}, 9, 9, text=0.0)
    with (
        patch("spsbench.models.translation.vocabulary.Vocabularies.overlap", none),
        pytest.raises(DataError, match="no token of the draft model is one of the target's"),
    ):
        pair(folders, drafter="tli").generate(WORDS[0])


def test_a_pair_of_one_tokenizer_is_left_as_it_was(tmp_path):
    made = tiny("llama", vocab=len(of_bytes()), dtype=torch.float32)
    one = {name: str(save(tmp_path / name, made, of_bytes())) for name in ("target", "draft")}
    assert pair(one).cell.drafter.name == "model"
    assert pair(one, drafter="tli").generate("the cat").metrics.alpha == pytest.approx(1, abs=1e-5)
