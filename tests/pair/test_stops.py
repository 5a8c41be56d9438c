"""Stop strings that are, or hold, the names of special tokens."""

import pytest

import spsbench
from tests.folders import byte_tokenizer, save
from tests.oracles.models import successor

TURN = "<|turn|>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that writes `bc<|turn|>xy` and then `a` again, after an `a`."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": [TURN]})
    turn = tokenizer.convert_tokens_to_ids(TURN)
    cycle = [*tokenizer.encode("abc"), turn, *tokenizer.encode("xy")]
    return save(tmp_path_factory.mktemp("stops"), successor(len(tokenizer), cycle), tokenizer)


@pytest.fixture
def generated(folder):
    def generate(*stops, **options):
        lines = []
        pair = spsbench.load(target=str(folder), drafter="ngram", k=3, say=lines.append)
        text = pair.generate("abca", stop=stops, max_new_tokens=9, temperature=0, **options)
        return text, [line for line in lines if "`stop`" in line]

    return generate


@pytest.mark.parametrize(
    "options", [{}, {"k": 0}, {"ignore_eos": True}, {"decoder": "hf"}], ids=str
)
@pytest.mark.parametrize("stops", [[TURN], ["cx", TURN], ["xy", TURN], ["c!", TURN]])
def test_a_text_stops_before_the_special_token_that_is_named(generated, stops, options):
    text, lines = generated(*stops, **options)
    assert (text.text, text.finish, len(text.tokens)) == ("bc", "stop", 3)
    assert lines == []


def test_a_stop_string_across_a_special_token_is_told_to_end_nothing(generated):
    text, lines = generated(f"c{TURN}")
    assert (text.text, text.finish) == ("bcxyabc", "length")
    assert lines == [
        f"note: `stop` 'c{TURN}' ends no text: {TURN} is a special token, which has none"
    ]
