"""Tokenizers that disagree: of bytes, of SentencePiece's kind, with odd rules of their own."""

import json
from collections.abc import Callable, Iterable

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

PROSE = ("the cat sat on the mat and the dog ran over the hill to the old house in 1984",) * 9
CODE = ("def value(x):\n    return x + 12345\n\nfor item in range(10):\n    print(item)\n",) * 9
ENDS = {"eos_token": "</s>", "bos_token": "<s>"}


def of_bytes(
    lines: Iterable[str] = PROSE,
    size: int = 330,
    *special: str,
    lead: str = "</s>",
    digits: bool = False,
    template: str | None = None,
) -> PreTrainedTokenizerFast:
    """Byte-level BPE, `lead` and `special` first; with `digits` each is a token of its own."""
    raw = Tokenizer(models.BPE())
    parts = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True)] * digits + parts
    )
    raw.decoder = decoders.ByteLevel()
    raw.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    first = [lead, *special]
    raw.train_from_iterator(lines, _bpe(size, initial_alphabet=alphabet, special_tokens=first))
    bos, eos = special[:2] or (lead, lead)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=eos, bos_token=bos, chat_template=template
    )


def of_marks(lines: Iterable[str] = CODE, size: int = 90) -> PreTrainedTokenizerFast:
    """As Llama's: a mark for a space, one before the text, bytes by name, a BOS, an unknown."""
    raw = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    raw.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    raw.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    special = ["<unk>", "<s>", "</s>"]
    raw.train_from_iterator(lines, _bpe(size, special_tokens=special))
    trained = json.loads(raw.to_str())["model"]
    own = sorted(trained["vocab"], key=trained["vocab"].get)[len(special) :]
    names = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *own]
    raw.model = models.BPE(
        vocab={name: index for index, name in enumerate(names)},
        merges=[tuple(pair) for pair in trained["merges"]],
        unk_token="<unk>",
        byte_fallback=True,
    )
    raw.add_special_tokens(special)
    return _with_bos(raw)


def of_pieces() -> PreTrainedTokenizerFast:
    """As T5's: a unigram model over marks, after NFKC, which no decoder can undo."""
    raw = Tokenizer(models.Unigram())
    raw.normalizer = normalizers.NFKC()
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120,
        special_tokens=["<unk>", "<s>", "</s>"],
        unk_token="<unk>",
        show_progress=False,
    )
    raw.train_from_iterator([*PROSE, *CODE], trainer)
    return _with_bos(raw)


def lowered() -> PreTrainedTokenizerFast:
    """Byte-level, of lower-case text alone."""
    made = of_bytes(CODE, 310)
    made.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Lowercase()]
    )
    return made


def of_words() -> PreTrainedTokenizerFast:
    """Whole words and what is between them; others are unknown. No decoder."""
    raw = Tokenizer(models.WordLevel(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+|\w+|[^\w\s]"), "isolated")
    trainer = trainers.WordLevelTrainer(
        special_tokens=["<unk>", "<s>", "</s>"], show_progress=False
    )
    raw.train_from_iterator([*PROSE, *CODE], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", **ENDS)


def with_middle_specials() -> PreTrainedTokenizerFast:
    """Byte-level; special tokens and an added word in the middle of the ids."""
    made = of_bytes(PROSE, 280)
    made.add_special_tokens({"additional_special_tokens": ["<|turn|>", "<|tool|>"]})
    made.add_tokens([AddedToken("supercat", special=False)])
    made.add_tokens([AddedToken(word, special=False) for word in (" value(", "house in")])
    return made


TONGUES: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "bytes": of_bytes,
    "bytes, single digits": lambda: of_bytes(CODE, 310, lead="<|end|>", digits=True),
    "marks": of_marks,
    "pieces": of_pieces,
    "lower case": lowered,
    "words": of_words,
    "specials in the middle": with_middle_specials,
}


def _bpe(size: int, **more: object) -> trainers.BpeTrainer:
    return trainers.BpeTrainer(vocab_size=size, show_progress=False, **more)


def _with_bos(raw: Tokenizer) -> PreTrainedTokenizerFast:
    raw.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", raw.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", **ENDS)
