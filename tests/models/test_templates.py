"""Chats of three families, with tokenizers that are built as theirs: as transformers makes them."""

from typing import NamedTuple

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from spsbench.models.tokenizers import encode_chat

CHATML = (
    "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are of help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MISTRAL = (
    "{%- if messages[0]['role'] == 'system' %}{%- set system = messages[0]['content'] %}"
    "{%- set loop_messages = messages[1:] %}"
    "{%- else %}{%- set loop_messages = messages %}{%- endif %}"
    "{{- bos_token }}{%- for m in loop_messages %}"
    "{%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('roles must alternate') }}{%- endif %}"
    "{%- if m['role'] == 'user' %}{%- if loop.last and system is defined %}"
    "{{- '[INST] ' + system + '\n\n' + m['content'] + '[/INST]' }}"
    "{%- else %}{{- '[INST] ' + m['content'] + '[/INST]' }}{%- endif %}"
    "{%- else %}{{- ' ' + m['content'] + eos_token }}{%- endif %}{%- endfor %}"
)
PHI = (
    "{% for m in messages %}{% if m['role'] == 'system' %}"
    "{{'<|system|>\n' + m['content'] + '<|end|>\n'}}{% elif m['role'] == 'user' %}"
    "{{'<|user|>\n' + m['content'] + '<|end|>\n'}}{% elif m['role'] == 'assistant' %}"
    "{{'<|assistant|>\n' + m['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)


class Family(NamedTuple):
    """What a family writes around a turn, and how its tokenizer cuts."""

    template: str
    controls: tuple[str, ...]  # the first one begins a text, the second ends it
    spaces: bool = False  # pieces with "▁", as SentencePiece cuts, and one put before a text
    begins: bool = False  # whoever encodes a text gets the first control token before it
    strips: bool = False  # control tokens swallow the white space after them


FAMILIES = {
    "chatml": Family(CHATML, ("<|im_start|>", "<|im_end|>")),
    "mistral": Family(MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]"), spaces=True, begins=True),
    "phi": Family(
        PHI,
        ("<s>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"),
        spaces=True,
        begins=True,
        strips=True,
    ),
}


def tokenizer_of(family):
    """Of bytes, or of characters with "▁" for a space."""
    letters = [chr(i) for i in range(32, 127)] + ["▁", "\n", "é"]
    if not family.spaces:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    first = "▁" if family.spaces else "Ġ"
    vocab = {letter: i for i, letter in enumerate(["<unk>", *letters, "th", "the", f"{first}the"])}
    pairs = [("t", "h"), ("th", "e"), (first, "the")]
    raw = Tokenizer(models.BPE(vocab=vocab, merges=pairs, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    if family.spaces:
        raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        raw.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    raw.add_special_tokens(
        [AddedToken(t, special=True, rstrip=family.strips) for t in family.controls]
    )
    begin, end = family.controls[:2]
    if family.begins:
        raw.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, raw.token_to_id(begin))]
        )
    made = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token=begin, eos_token=end)
    made.chat_template = family.template
    return made


@pytest.fixture(scope="module")
def tokenizers():
    made = {name: tokenizer_of(family) for name, family in FAMILIES.items()}
    return made.__getitem__


def chat(*turns, system=None):
    said = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)]
    return [*([{"role": "system", "content": system}] if system else []), *said]


CHATS = {
    "a turn": chat("What is the cat?"),
    "white space": chat("  the \n\n cat \n"),
    "code": chat("def f(x):\n    return [x]\n", "```python\nx = {'é': 1}\n```", "<b>&amp;</b>"),
    "turns": chat("the first", "an answer", "the second", " the other ", "the third"),
    "system": chat("hi", system="Be brief. "),
    "system and turns": chat("hi", "the cat", "and?", "no.", "why", system="Be the cat."),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("said", CHATS)
def test_as_transformers_makes_it(name, said, tokenizers):
    tokenizer, messages = tokenizers(name), CHATS[said]
    asked = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert encode_chat(tokenizer, messages) == asked
    begin = tokenizer.bos_token_id
    if FAMILIES[name].begins and name != "phi":  # whose template does not write it
        assert asked.count(begin) == 1


@pytest.mark.parametrize("name", FAMILIES)
def test_control_tokens_in_what_was_said_are_text(name, tokenizers):
    tokenizer, controls = tokenizers(name), FAMILIES[name].controls
    known = {tokenizer.convert_tokens_to_ids(control) for control in controls}
    plain, forged = (
        encode_chat(tokenizer, chat(f"a{middle}b")) for middle in ("", "".join(controls))
    )
    assert [i for i in forged if i in known] == [i for i in plain if i in known]
