"""Two tokenizers: whether token i is the same for both, and how many tokens there really are."""

import json
from itertools import product
from typing import Any

from transformers import PreTrainedTokenizerBase

from spsbench.errors import DataError
from spsbench.models.boundary import silent, translated, without_panics

_SECTIONS = ("model", "normalizer", "pre_tokenizer", "decoder")
_SPECIAL = ("bos_token_id", "eos_token_id", "unk_token_id")
_ADVICE = (
    "Draft in its own tokens with --drafter slem or tli, choose a draft model of the target's "
    "family, or use --drafter ngram"
)


def check_same(
    target_tokenizer: PreTrainedTokenizerBase, draft_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Refuse a draft model whose tokens are not the target's.

    Raises:
        DataError: with the first id, rule or text that differs.
    """
    if (found := difference(target_tokenizer, draft_tokenizer)) is not None:
        raise DataError(f"{found}. {_ADVICE}")


def difference(
    target_tokenizer: PreTrainedTokenizerBase, draft_tokenizer: PreTrainedTokenizerBase
) -> str | None:
    """The first id, rule or text on which two tokenizers differ; None if there is none.

    Compared are the whole vocabulary, the special ids, the rules of the tokenizers and the tokens
    of 200 texts.
    """
    ours, theirs = target_tokenizer.get_vocab(), draft_tokenizer.get_vocab()
    if ours != theirs:
        return _first_difference(ours, theirs)
    for name in _SPECIAL:
        here, there = getattr(target_tokenizer, name), getattr(draft_tokenizer, name)
        if here != there:
            return (
                f"{name} is {here} for the target and {there} for the draft (tokenizers): expected "
                "the same"
            )
    if (section := _other_rules(target_tokenizer, draft_tokenizer)) is not None:
        return (
            f"the {section} section differs between target and draft (tokenizer.json): expected "
            "the same rules"
        )
    texts = probes(list(target_tokenizer.added_tokens_encoder))
    with translated("the tokenizer", "target or draft"), silent(), without_panics():
        for text in texts:
            here = target_tokenizer.encode(text, add_special_tokens=False)
            there = draft_tokenizer.encode(text, add_special_tokens=False)
            if here != there:
                return (
                    f"{text[:40]!r} is {here[:8]} for the target and {there[:8]} for the draft "
                    "(tokenizers): expected the same tokens"
                )
    return None


def _first_difference(ours: dict[str, int], theirs: dict[str, int]) -> str:
    here = {index: token for token, index in ours.items()}
    there = {index: token for token, index in theirs.items()}
    for index in sorted(here.keys() | there.keys()):
        if here.get(index) != there.get(index):
            break
    return (
        f"token {index} is {_shown(here.get(index))} for the target and "
        f"{_shown(there.get(index))} for the draft (tokenizers): expected one vocabulary"
    )


def _shown(token: str | None) -> str:
    return "nothing" if token is None else repr(token[:40])


def _other_rules(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> str | None:
    here, there = _rules(target), _rules(draft)
    if here == there or not here or not there:
        return None
    ours, theirs = json.loads(here), json.loads(there)
    return next((each for each in _SECTIONS if ours.get(each) != theirs.get(each)), None)


def _rules(tokenizer: PreTrainedTokenizerBase) -> str:
    """The serialised tokenizer; empty for one that is written in Python."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    return "" if backend is None else str(backend.to_str())


def probes(special: list[str]) -> list[str]:
    """200 texts on which tokenizers tend to differ: code, spaces, digits, scripts, specials."""
    words = (
        " the",
        "The",
        " naïve",
        "don't",
        "HTTPServer",
        "über",
        "Ελλάδα",
        "日本語",
        "عربي",
        "हिन्दी",
    )
    ends = ("", " ", "  ", "\n", "\r\n", "\t", "\n\n    ", ".", "...", "!?", "\u00a0", "\u200b")
    code = (
        "def f(x):\n    return x**2\n",
        "for (int i = 0; i < n; ++i) {\n\ta[i] += 1;\n}",
        "SELECT * FROM t WHERE a<>'b';",
        '{"a": [1, 2.5e-3, null]}',
        "<div class='x'>&amp;</div>",
        "https://example.org/a?b=c#d",
        "x_1 = __name__ == '__main__'",
        "0x7F 1e10 3.14159 1,000,000",
    )
    digits = [str(10**n + 7 * n) for n in range(20)]
    signs = ("👩‍👩‍👧", "🏳️‍🌈", "é", "e\u0301", "ﬁ", "Ⅷ", "\ufeff", "𝔘", "½", "…", "—", "\u2028")
    texts = ["".join(pair) for pair in product(words, ends)]
    texts += [*code, *digits, *signs]
    texts += [f"a{token}b" for token in special[:20]]
    texts += [" " * n + "x" for n in range(1, 201 - len(texts))]
    return texts[:200]


def common_size(
    target_config_vocab: int, draft_config_vocab: int, tokenizer: PreTrainedTokenizerBase
) -> int:
    """How many tokens there are: rows of the logits after them are padding.

    Raises:
        DataError: the tokenizer has ids that one of the models has no row for.
    """
    size = max(tokenizer.get_vocab().values(), default=-1) + 1
    for name, rows in (("target", target_config_vocab), ("draft", draft_config_vocab)):
        if size > rows:
            raise DataError(
                f"the tokenizer has ids up to {size - 1} and the {name} {rows} rows (vocab_size): "
                "expected a row for each. Use the tokenizer that came with the model"
            )
    return size
