"""Several prompts at once by the library: the texts of each alone, and what goes wrong named."""

from typing import Any

import pytest

from spsbench.errors import BatchError, DataError, OutOfMemoryError, UsageError
from spsbench.loop import decode
from spsbench.pair.load import load
from spsbench.pair.pair import Pair
from tests.folders import random_model, save
from tests.variants import first

SHORT = {"max_new_tokens": 12, "ignore_eos": True}
PROMPTS = ["the cat", "a", "the cat sat on the mat and", "of the cat the cat"]


@pytest.fixture(scope="module", params=["eager", "fast"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("models")
    target = save(folder / "target", random_model())
    draft = save(folder / "draft", random_model(noise=0.1))
    made: Pair = load(target=str(target), draft=str(draft), engine=request.param, **SHORT)
    return made


@pytest.mark.needs_fast
@pytest.mark.parametrize(
    "how", first(2, [{"k": 3}, {"drafter": "ngram:min_n=1"}, {"k": 0}, {"temperature": 0}])
)
def test_texts_of_a_batch_are_those_of_each_prompt(pair: Pair, how: dict[str, Any]) -> None:
    alone = [pair.generate(prompt, seed=4, **how) for prompt in PROMPTS]
    for size in None, 2:
        together = pair.generate(PROMPTS, batch=size, seed=4, **how)
        assert [text.tokens for text in together] == [text.tokens for text in alone]
        assert [text.text for text in together] == [text.text for text in alone]


@pytest.mark.needs_fast
def test_prompts_are_texts_ids_or_conversations(pair: Pair) -> None:
    one, other = pair.generate([[5, 6, 7], [{"role": "user", "content": "Hello"}]])
    assert one.tokens == pair.generate([5, 6, 7]).tokens
    assert other.tokens == pair.generate([{"role": "user", "content": "Hello"}]).tokens


@pytest.mark.needs_fast
def test_a_stop_string_ends_its_row_alone(pair: Pair) -> None:
    alone = [pair.generate(prompt, seed=4) for prompt in PROMPTS]
    stop = alone[2].text[3:5]
    ended = pair.generate(PROMPTS, seed=4, stop=(stop,))
    for whole, text in zip(alone, ended, strict=True):
        assert text.finish == ("stop" if stop in whole.text else "length")
        assert text.text == whole.text.split(stop)[0]


@pytest.mark.needs_fast
def test_a_row_that_fails_is_named_and_the_others_go_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = [pair.generate(prompt, seed=4) for prompt in PROMPTS]
    read = decode.fetch_verdict

    def fails(draft: Any, q: Any, verdict: Any, position: int, *more: Any) -> Any:
        if position == len(pair.loaded.tokenizer.encode(PROMPTS[1])):
            raise decode.NonFiniteError(f"non-finite logits at position {position}")
        return read(draft, q, verdict, position, *more)

    monkeypatch.setattr(decode, "fetch_verdict", fails)
    with pytest.raises(BatchError) as error:
        pair.generate(PROMPTS, seed=4)
    others = [None if text is None else text.tokens for text in error.value.texts]
    assert others == [alone[0].tokens, None, alone[2].tokens, alone[3].tokens]


@pytest.mark.needs_fast
def test_what_is_wrong_with_a_prompt_or_a_batch_is_told_before_anything_runs(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError):
        pair.generate([[1, 2], [999999]])
    with pytest.raises(UsageError):
        pair.generate(PROMPTS, batch=0)
    with pytest.raises(UsageError):
        pair.generate("the cat", batch=2)
    monkeypatch.setattr("spsbench.generation.ram", lambda: (1 << 20, 1 << 14))
    with pytest.raises(OutOfMemoryError):
        pair.generate(PROMPTS)
