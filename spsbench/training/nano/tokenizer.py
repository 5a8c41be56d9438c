"""The byte-level BPE tokenizer that target and draft share."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"  # ends and parts documents; the only special token


def train(texts: Iterable[str], vocab: int) -> PreTrainedTokenizerFast:
    """A tokenizer of exactly `vocab` entries, the special token (id 0) among them.

    It adds no token by itself and loses no byte: decoding what it encoded gives the text back.

    Raises:
        ValueError: the texts are too small to fill the vocabulary.
    """
    model = Tokenizer(BPE())
    model.pre_tokenizer = ByteLevel(add_prefix_space=False)
    model.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    model.train_from_iterator(texts, trainer)
    if model.get_vocab_size() != vocab:
        raise ValueError(f"the texts give {model.get_vocab_size()} tokens, wanted {vocab}")
    return PreTrainedTokenizerFast(
        tokenizer_object=model,
        bos_token=END,
        eos_token=END,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
