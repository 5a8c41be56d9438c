"""A tokenizer for random models: engines refuse folders without one, though they are fed ids."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

BYTES = 256
ADDED = "<|endoftext|>"


def numbered_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Bytes, then numbered fillers up to `size` tokens; no token ends a text.

    A vocabulary smaller than the bytes keeps as many of them as it has. The last token is marked
    as padding, for OpenVINO's converter refuses a tokenizer without any special token; that before
    it is what transformers would add to every Qwen's.
    """
    names = sorted(pre_tokenizers.ByteLevel.alphabet())[:size]
    names += [f"<{number}>" for number in range(len(names), size)]
    if size > BYTES + 2:
        names[-2] = ADDED
    raw = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token=names[-1])
