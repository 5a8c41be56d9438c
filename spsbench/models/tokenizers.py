"""Tokenizers: loading, encoding of text and chats, and comparison of two."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from spsbench.checkpoints.config import CONFIG_LIMIT, TOKENIZER_LIMIT, read_object
from spsbench.errors import DataError
from spsbench.models.chat import render_chat, special_tokens
from spsbench.models.third_party import open_config, silence, translate_errors, without_panics
from spsbench.settings.thoughts import is_mark
from spsbench.tables import read_table

REWRITING = ("normalizer", "pre_tokenizer", "decoder")  # sections that may lengthen a text
NAMES_EOS = ("generation_config.json", "config.json")
_SPECIAL = ("bos_token_id", "eos_token_id", "unk_token_id")

_ADVICE = (
    "Draft in its own tokens with `drafter` slem or tli, choose a draft model of the target's "
    "family, or use `drafter` ngram"
)

MAX_GROWTH = 1000  # times the length of a text
_NUMBER = re.compile(r"[0-9]++")


class IdTokenizer:
    """A tokenizer that writes ids as numbers, for models that have none: `17 4 230`."""

    name_or_path = "numbers"
    bos_token_id = None

    def encode(self, text: str, *, split_special_tokens: bool = True) -> list[int]:
        """Return the numbers in `text`; of other text its bytes, one id each."""
        words = text.split()
        if all(map(_NUMBER.fullmatch, words)):
            return list(map(int, words))
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Write the ids, each after a space."""
        return "".join(f" {i}" for i in token_ids)


def load_tokenizer(
    folder: Path, *, trust_remote_code: bool
) -> transformers.PreTrainedTokenizerBase:
    """Load the tokenizer in `folder`, never from the network; DataError: it cannot be used."""
    check_growth(folder)
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    if (folder / "config.json").is_file() and not trust_remote_code:
        with translate_errors("config.json", folder), silence():
            options["config"] = open_config(folder)
    with translate_errors("the tokenizer", folder), silence():
        return AutoTokenizer.from_pretrained(folder, **options)


def encode_text(tokenizer: transformers.PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return a prompt's ids, names of special tokens as text; DataError: a NUL or a surrogate.

    A BOS is added where the tokenizer adds one by itself, and to a blank prompt, which is refused
    (DataError) where there is none.
    """
    if "\0" in text:
        raise DataError(
            f"a NUL at character {text.index(chr(0))} (prompt): expected text. Remove it"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"a lone surrogate at character {error.start} (prompt): expected Unicode text. "
            "Save the prompt as UTF-8"
        ) from error
    with translate_errors("the tokenizer", tokenizer.name_or_path), silence(), without_panics():
        ids = [int(i) for i in tokenizer.encode(text, split_special_tokens=True)]
    if text.strip() and ids:
        return ids
    start = tokenizer.bos_token_id
    if start is None:
        raise DataError(
            "a blank prompt (prompt): expected text, since this tokenizer has no BOS token. "
            "Give a prompt"
        )
    return ids if ids[:1] == [start] else [start, *ids]


def encode_chat(
    tokenizer: transformers.PreTrainedTokenizerBase,
    messages: Sequence[Mapping[str, object]],
    *,
    instead: str = "Ask with `chat` off",
    clock: datetime | None = None,
    tools: Sequence[Any] = (),
) -> list[int]:
    """Return the ids of a chat up to the model's answer, by the chat template.

    DataError: no template, one that fails or has no place for tool calls, or an empty chat. The
    other arguments are those of `render_chat`.
    """
    if not tokenizer.chat_template:
        raise DataError(f"no chat template (tokenizer): expected a chat model. {instead}")
    with translate_errors("the chat template", tokenizer.name_or_path), silence():
        template = tokenizer.get_chat_template()
        if "tool_calls" not in template and any(m.get("tool_calls") for m in messages):
            raise DataError(
                "a message with tool calls: expected none, the model's chat template has no place "
                "for them. Leave them out"
            )
        ids: list[int] = []
        spans = render_chat(tokenizer, messages, instead, clock, tools)
        with without_panics():
            for span in spans:
                for piece in [span.text] if span.plain else pieces(tokenizer, span.text):
                    ids += _encode_piece(tokenizer, piece, span.plain)
    if not ids:
        raise DataError("an empty chat (prompt): expected a message. Give a prompt")
    return ids


@lru_cache(maxsize=1024)  # a conversation has the same pieces before each of its answers
def _encode_piece(tokenizer: Any, text: str, plain: bool) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=plain))


def pieces(tokenizer: Any, text: str) -> list[str]:
    """Cut a text before its added tokens, so that the ids of the pieces are those of the text.

    A tokenizer of the library `tokenizers` finds added tokens first, the longest at each place, and
    treats the text between two of them by itself. One that takes blanks before it, or whole words
    alone, is found by its surroundings: then a text is one piece. An empty text has none.
    """
    borders = _borders(tokenizer)
    starts = [match.start() for match in borders.finditer(text)] if borders else []
    ends = sorted({0, *starts, len(text)})
    return [text[start:end] for start, end in pairwise(ends)]


@lru_cache(maxsize=8)
def _borders(tokenizer: Any) -> re.Pattern[str] | None:
    """Return the pattern of the added tokens before which a text is cut; None: it is not cut."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    if not getattr(tokenizer, "is_fast", False) or any(t.single_word or t.lstrip for t in added):
        return None
    names = sorted((t.content for t in added if t.content and not t.normalized), key=len)
    return re.compile("|".join(map(re.escape, reversed(names)))) if names else None


def named_tokens(tokenizer: Any, stops: Sequence[str]) -> frozenset[int]:
    """Return the ids of special tokens among some stop strings: their names occur in no text."""
    ids = special_tokens(tokenizer) if stops else {}
    return frozenset(ids[stop] for stop in stops if stop in ids)


def with_marks(tokenizer: Any) -> Any:
    """Return `tokenizer` if it has no marks of thoughts, else an object with `decode` alone.

    It keeps them, lest a thought seem an answer, and skips other special tokens if asked.
    """
    special = special_tokens(tokenizer)
    hidden = {index for name, index in special.items() if not is_mark(name)}
    if len(hidden) == len(special):
        return tokenizer

    def decode(token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        written = [i for i in token_ids if not (skip_special_tokens and i in hidden)]
        return str(tokenizer.decode(written))

    return SimpleNamespace(decode=decode)


def markup_note(tokenizer: Any, prompts: Iterable[str]) -> str | None:
    """Return a line about a token of the chat template that plain prompts name; None: none is."""
    template = str(getattr(tokenizer, "chat_template", None) or "")
    names = [name for name in special_tokens(tokenizer) if name and name in template]
    name = next((name for prompt in prompts for name in names if name in prompt), None)
    if name is None:
        return None
    return f"{name} in a plain prompt is text and no token: ask with `chat`, or give token ids"


def reads_clock(tokenizer: transformers.PreTrainedTokenizerBase) -> bool:
    """Return whether a chat template calls `strftime_now`, the time at which it is rendered."""
    templates = tokenizer.chat_template or ""
    texts = templates.values() if isinstance(templates, dict) else [templates]
    return any("strftime_now" in text for text in texts)


def eos_ids(folder: Path, tokenizer: Any) -> frozenset[int]:
    """Return every id that ends a text, by config and tokenizer; DataError: one is no number.

    `config.json` counts only without a generation config: there it is what transformers takes too,
    and next to one it is often stale. Empty: neither says one, or the tokenizer is of numbers.
    """
    if isinstance(tokenizer, IdTokenizer):
        return frozenset()
    path = next((folder / name for name in NAMES_EOS if (folder / name).is_file()), None)
    values = {} if path is None else read_object(path, CONFIG_LIMIT)
    inner = values.get("text_config")
    within = inner if isinstance(inner, dict) else {}
    named = values.get("eos_token_id", within.get("eos_token_id"))
    ids = [*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id]
    ids = [token for token in ids if token is not None]
    if any(type(token) is not int for token in ids):
        raise DataError(
            f"eos_token_id is {repr(named)[:40]} ({path}): expected an id, or a list of "
            "ids. Fetch the model again"
        )
    return frozenset(ids)


def check_same_tokens(target_tokenizer: Any, draft_tokenizer: Any) -> None:
    """Raise DataError for a draft model whose tokens are not the target's, with the difference."""
    if (mismatch := difference(target_tokenizer, draft_tokenizer)) is not None:
        raise DataError(f"{mismatch}. {_ADVICE}")


def difference(target_tokenizer: Any, draft_tokenizer: Any) -> str | None:
    """Return in words the first id, rule or text on which two tokenizers differ; None: none is.

    Compared are the whole vocabulary, the special ids, the rules of the tokenizers and the tokens
    of 200 texts. Numbers for tokens go with any. DataError: a tokenizer fails.
    """
    if isinstance(target_tokenizer, IdTokenizer) or isinstance(draft_tokenizer, IdTokenizer):
        return None
    both = target_tokenizer, draft_tokenizer
    vocabs = [tokenizer.get_vocab() for tokenizer in both]
    if vocabs[0] != vocabs[1]:
        index = min(index for _, index in vocabs[0].items() ^ vocabs[1].items())
        tokens = [next((repr(x[:40]) for x in v if v[x] == index), "nothing") for v in vocabs]
        return (
            f"token {index} is {tokens[0]} for the target and {tokens[1]} for the draft "
            "(tokenizers): expected one vocabulary"
        )
    for name in _SPECIAL:
        ids = [getattr(tokenizer, name) for tokenizer in both]
        if ids[0] != ids[1]:
            return (
                f"{name} is {ids[0]} for the target and {ids[1]} for the draft (tokenizers): "
                "expected the same"
            )
    if (section := _other_rules(target_tokenizer, draft_tokenizer)) is not None:
        return (
            f"the {section} section differs between target and draft (tokenizer.json): expected "
            "the same rules"
        )
    texts = probes(list(target_tokenizer.added_tokens_encoder))
    with translate_errors("the tokenizer", "target or draft"), silence(), without_panics():
        for text in texts:
            ids = [tokenizer.encode(text, add_special_tokens=False) for tokenizer in both]
            if ids[0] != ids[1]:
                return (
                    f"{text[:40]!r} is {ids[0][:8]} for the target and {ids[1][:8]} for the draft "
                    "(tokenizers): expected the same tokens"
                )
    return None


def _other_rules(target: PreTrainedTokenizerBase, draft: PreTrainedTokenizerBase) -> str | None:
    """Return the first section of rules in which two tokenizers differ; None: none, or no rules."""
    backends: list[Any] = [getattr(x, "backend_tokenizer", None) for x in (target, draft)]
    if None in backends:
        return None
    texts = [backend.to_str() for backend in backends]
    if texts[0] == texts[1]:
        return None
    ours, theirs = map(json.loads, texts)
    names = ("model", *REWRITING)
    return next((name for name in names if ours.get(name) != theirs.get(name)), None)


def probes(special: list[str]) -> list[str]:
    """Return 200 texts on which tokenizers tend to differ, some around a token of `special`."""
    words, ends, code, signs = read_table(__file__, "probes.toml").values()
    digits = [str(10**n + 7 * n) for n in range(20)]
    texts = ["".join(pair) for pair in product(words, ends)]
    texts += [*code, *digits, *signs]
    texts += [f"a{token}b" for token in special[:20]]
    texts += [" " * n + "x" for n in range(1, 201 - len(texts))]
    return texts[:200]


def model_token_count(name: str, rows: int, tokenizer: Any) -> int:
    """Return a model's number of tokens: later logits are padding; DataError: words without a row.

    Special tokens of the tokenizer may lie beyond the rows: no text is encoded to them. To numbers
    all rows are tokens. `name`: "target" or "draft", for the message.
    """
    if isinstance(tokenizer, IdTokenizer):
        return rows
    vocab, special = tokenizer.get_vocab(), special_tokens(tokenizer)
    size = max(vocab.values(), default=-1) + 1
    if any(index >= rows and token not in special for token, index in vocab.items()):
        raise DataError(
            f"the tokenizer has ids up to {size - 1} and the {name} {rows} rows (vocab_size): "
            "expected a row for each. Use the tokenizer that came with the model"
        )
    return min(size, rows)


def tokens_beyond(tokenizer: Any, rows: int) -> list[str]:
    """Return the special tokens for which a model of so many rows has none."""
    return [token for token, index in special_tokens(tokenizer).items() if index >= rows]


def check_growth(folder: Path) -> None:
    """Raise DataError for a tokenizer.json whose rules of one section grow a text a thousandfold.

    Forty `Replace` rules that double a letter would need 2^40 bytes, and no interrupt reaches them.
    """
    if not (path := folder / "tokenizer.json").is_file():
        return
    rules = read_object(path, TOKENIZER_LIMIT)
    for section in REWRITING:
        times = 1.0
        for rule in _replacements(rules.get(section)):
            times *= _growth(rule)
            if times > MAX_GROWTH:
                raise DataError(
                    f"the {section} makes a text more than {MAX_GROWTH} times as long ({path}): "
                    "expected Replace rules that keep it near its length. Fetch the model again"
                )


def _replacements(rules: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the `Replace` rules in a part of a tokenizer.json, nested ones too, in order."""
    if isinstance(rules, Mapping):
        if rules.get("type") == "Replace":
            yield rules
        for rule in rules.values():
            yield from _replacements(rule)
    elif isinstance(rules, list):
        for rule in rules:
            yield from _replacements(rule)


def _growth(rule: Mapping[str, Any]) -> float:
    """Return how many times as long a `Replace` rule may make a text: 1 or more, 1 if malformed."""
    pattern, content = rule.get("pattern"), rule.get("content")
    if not isinstance(content, str) or not isinstance(pattern, Mapping):
        return 1.0  # nothing that the tokenizer reads
    if isinstance(text := pattern.get("String"), str):
        return max(1.0, len(content) / len(text)) if text else len(content) + 1.0
    try:
        empty = re.search(str(pattern.get("Regex")), "") is not None
    except (re.error, RecursionError, OverflowError):
        empty = True  # not Python's kind of pattern
    return max(1.0, len(content) + empty)
