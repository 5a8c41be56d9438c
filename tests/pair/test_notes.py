"""Notes about a model's files and prompts: what is not applied, what is no token."""

import json

import pytest

import spsbench
from spsbench.errors import DataError
from tests.folders import END, byte_tokenizer, random_model, save

MARKUP = "{% for m in messages %}{{ '<|end|>' + m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = save(tmp_path_factory.mktemp("notes"), random_model(), byte_tokenizer(MARKUP))
    values = {"stop_strings": ["the mat", "x" * 200], "top_k": -1, "do_sample": True}
    (where / "generation_config.json").write_text(json.dumps(values))
    return str(where)


def lines_of(folder, prompt, **options):
    lines = []
    pair = spsbench.load(target=folder, drafter="ngram", say=lines.append)
    text = pair.generate(prompt, max_new_tokens=3, **options)
    return text, lines


def test_stop_strings_of_the_generation_config_are_said_to_be_ignored(folder):
    text, lines = lines_of(folder, "the cat", chat=True)
    line = next(line for line in lines if "stop_strings" in line)
    assert line.startswith("note: ignored from the target's generation_config: stop_strings=['the")
    assert line.endswith("(`stop` ends a text)")
    assert len(line) < 180
    assert text.cell.top_k == 0


@pytest.mark.parametrize(
    ("prompt", "options", "noted"),
    [(f"{END}hello", {}, True), (f"{END}hello", {"chat": True}, False), ("hello", {}, False)],
)
def test_a_plain_prompt_in_the_markup_of_chats_is_noted(folder, prompt, options, noted):
    text, lines = lines_of(folder, prompt, **options)
    assert not noted or text.record.prompt_tokens > len("<hello")
    assert (f"note: {END} in a plain prompt is text and no token" in str(lines)) == noted


def test_a_padding_token_without_a_row_is_noted_and_never_drawn(tmp_path):
    tokenizer = byte_tokenizer()
    rows = len(tokenizer)
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    folder = str(save(tmp_path, random_model(), tokenizer))
    text, lines = lines_of(folder, "the cat sat on <pad>", temperature=2.0)
    assert max(text.tokens) < rows
    assert "no row for 1 special tokens of the tokenizer, such as <pad>" in str(lines)
    tokenizer.chat_template = "{{ messages[0].content }}<pad>"
    tokenizer.save_pretrained(folder)
    with pytest.raises(DataError):
        lines_of(folder, "the cat", chat=True)
