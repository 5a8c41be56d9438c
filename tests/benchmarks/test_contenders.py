"""Our engines, transformers and the cacheless algorithm on a tiny pair: one greedy text."""

import pytest

from arena.contenders.cacheless import PART, Cacheless
from arena.contenders.contender import Setting, fastest_threads
from arena.contenders.hf import Hf
from arena.contenders.ours import Ours
from tests.folders import byte_tokenizer, random_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
TOKENS, K = 24, 3


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    for name, noise in (("target", 0.0), ("draft", 0.1)):
        random_model(noise=noise).save_pretrained(folder / name)
        byte_tokenizer().save_pretrained(folder / name)
    return Setting(
        target=str(folder / "target"), draft=str(folder / "draft"), dtype="float32", k=K,
        temperature=0.0, threads=1, cores=1, context=64,
    )  # fmt: skip


@pytest.fixture(scope="module")
def text(setting):
    return loaded(Hf(), setting).generate("ars", PROMPT, TOKENS).tokens


def loaded(contender, setting):
    contender.load(setting)
    return contender


SLOW = [
    pytest.param(arm, marks=pytest.mark.slow) for arm in ("ars-static", "sps-defaults", "lookup")
]


@pytest.mark.parametrize("arm", ["ars", "sps", *SLOW])
def test_transformers(setting, text, arm):
    turn = loaded(Hf(), setting).generate(arm, PROMPT, TOKENS)
    assert turn.tokens == text
    assert sum(count for count, _ in turn.blocks) == TOKENS
    assert all(seconds > 0 for _, seconds in turn.blocks)
    sizes = {count for count, _ in turn.blocks}
    assert max(sizes) <= K + 1 or arm == "sps-defaults"
    assert (sizes == {1}) == arm.startswith("ars")


@pytest.mark.slow
def test_transformers_drafts_k_where_we_do(setting):
    """Not its default of 20, and no confidence threshold: block by block as our loop."""
    theirs = loaded(Hf(), setting).generate("sps", PROMPT, TOKENS)
    ours = loaded(Ours("eager"), setting).generate("sps", PROMPT, TOKENS)
    assert [count for count, _ in theirs.blocks] == [count for count, _ in ours.blocks]


def test_the_compiled_variant_is_offered_only_where_asked_for(setting):
    assert "ars-compiled" not in loaded(Hf(), setting).arms()


@pytest.mark.parametrize("engine", ["fast", pytest.param("eager", marks=pytest.mark.slow)])
@pytest.mark.parametrize("arm", ["ars", "sps"])
def test_ours(setting, text, arm, engine):
    contender = loaded(Ours(engine), setting)
    turn = contender.generate(arm, PROMPT, TOKENS)
    assert turn.tokens == text
    assert sum(count for count, _ in turn.blocks) == TOKENS
    assert turn.parts["rounds"] >= turn.parts["drafting"] + turn.parts["target"]
    assert contender.arms() == ("ars", "sps")
    assert len(contender.notes()["choices"]) == (2 if engine == "fast" else 0)


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["ars", "sps"])
def test_the_cacheless_algorithm(setting, text, arm):
    turn = loaded(Cacheless(), setting).generate(arm, PROMPT, TOKENS * PART)
    assert turn.tokens == text
    assert turn.whole


@pytest.mark.slow
@pytest.mark.parametrize("contender", [Hf(), Ours("eager")], ids=["hf", "ours"])
def test_steps_are_timed_as_often_as_asked_for(setting, contender):
    steps = loaded(contender, setting).steps(PROMPT, 3)
    assert len(steps["one"]) == len(steps["block"]) == 3
    assert steps["draft"]
    assert contender.notes()["threads"] == 1


def test_the_fastest_thread_count_is_left_set():
    tried, seconds = [], {1: 0.3, 2: 0.1, 3: 0.2}
    clock = lambda probe: seconds[tried[-1]]  # noqa: E731
    assert fastest_threads([1, 2, 3], tried.append, lambda: None, clock) == 2
    assert tried == [1, 2, 3, 2]
