"""Tokenizers whose rules would never end, or end in a panic of Rust, are a line."""

import json
import os

import pytest

from spsbench.errors import DataError, Exit
from spsbench.models.third_party import translate_errors, without_panics
from spsbench.models.tokenizers import check_growth, encode_text, load_tokenizer
from tests.folders import byte_tokenizer


def replace(pattern, content):
    return {"type": "Replace", "pattern": pattern, "content": content}


DOUBLE = replace({"String": "e"}, "ee")


def nested(depth):
    rules = DOUBLE
    for _ in range(depth):
        rules = {"type": "Sequence", "normalizers": [rules, rules]}
    return rules


def folder_with(folder, **sections):
    byte_tokenizer().save_pretrained(folder)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | sections))
    return folder


@pytest.mark.parametrize(
    "rules",
    [
        nested(8),
        {"type": "Sequence", "normalizers": [DOUBLE] * 40},
        {"type": "Sequence", "normalizers": [replace({"Regex": ""}, "a")] * 40},
        replace({"String": "e"}, "e" * 10_000),
    ],
    ids=["nested", "forty", "of nothing", "long"],
)
@pytest.mark.parametrize("section", ["normalizer", "decoder"])
def test_a_text_that_would_grow_without_end_is_refused(rules, section, tmp_path):
    with pytest.raises(DataError, match=f"the {section} makes a text more than 1000 times") as told:
        load_tokenizer(folder_with(tmp_path, **{section: rules}), trust_remote_code=False)
    assert "\n" not in str(told.value)


def test_rules_that_keep_a_text_near_its_length_are_taken(tmp_path):
    usual = [replace({"Regex": " {2,}"}, "\u2581"), replace({"String": " "}, "\u2581")] * 20
    rules = {"type": "Sequence", "normalizers": [{"type": "NFKC"}, *usual, nested(2)]}
    check_growth(folder_with(tmp_path, normalizer=rules))


def test_a_pattern_that_panics_is_a_line(tmp_path, capfd):
    pattern = {"Regex": "(x+x+)+y"}
    split = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    tokenizer = load_tokenizer(folder_with(tmp_path, pre_tokenizer=split), trust_remote_code=False)
    with pytest.raises(DataError, match=r"the tokenizer cannot be used .*Onig") as told:
        encode_text(tokenizer, "x" * 60)
    assert told.value.code == Exit.DATA
    assert capfd.readouterr().err == ""


def test_what_is_written_beside_a_tokenizer_is_not_lost(capfd):
    with without_panics():
        os.write(2, b"a word")
    assert capfd.readouterr().err == "a word"


def test_a_key_that_a_library_does_not_find_is_told_with_its_place(tmp_path):
    config = {"rope_parameters": {"rope_type": "wibble"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (
        pytest.raises(DataError, match=r"rope_parameters\.rope_type is 'wibble' in config\.json"),
        translate_errors("the model", tmp_path),
    ):
        raise KeyError("wibble")
    with (
        pytest.raises(DataError, match="expected 'added_tokens' in its files"),
        translate_errors("the tokenizer", tmp_path),
    ):
        raise KeyError("added_tokens")
