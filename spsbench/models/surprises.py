"""What a pair of models brings that one would not expect."""

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedModel

from spsbench.engines.limits import context_of
from spsbench.engines.quantization.layers import format_of
from spsbench.models.gguf.unpack import blocks_in_words, origin
from spsbench.models.loader import hidden_settings
from spsbench.models.shelf import Loaded
from spsbench.settings.cell import WARP
from spsbench.settings.models import BLOCKS


def surprises(loaded: Loaded, *, chat: bool) -> Iterator[str]:
    """What a pair of models brings that one would not expect.

    Args:
        chat: the sampling that the target names itself is applied, but for what changes its law.
    """
    target, draft = loaded.target, loaded.draft
    models = {"target": target} | ({"draft model": draft} if draft is not None else {})
    for name, model in models.items():
        if (before := origin(model.config.name_or_path)) is not None:
            kept = format_of(model) == BLOCKS
            blocks = blocks_in_words(model.config.name_or_path)
            yield f"the {name}'s weights are " + (
                f"the blocks of {before} as they are: {blocks}"
                if kept
                else f"dequantised from {before}"
            )
    if draft is not None:
        yield from surprises_of_pair(target, draft)
    if loaded.vocabularies is not None:
        yield f"the draft model has another tokenizer: {loaded.vocabularies.overlap}"
    rows = target.config.get_text_config().vocab_size
    if loaded.vocab_size < rows:
        padding = rows - loaded.vocab_size
        yield f"{padding} of the target's {rows} logits are no tokens and never drawn"
    hidden = hidden_settings(loaded.folder)
    if penalties := {name: value for name, value in hidden.items() if name not in WARP}:
        yield f"{_ignored(penalties)} (the law that is kept exactly has none of these)"
    if not chat and (sampling := {name: hidden[name] for name in WARP if name in hidden}):
        yield f"{_ignored(sampling)} (a chat takes these)"
    if not loaded.eos:
        yield "the target has no end-of-text token: only --max-new-tokens and --stop end the text"


def _ignored(settings: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{name}={value}" for name, value in settings.items())
    return f"ignored from the target's generation_config: {listed}"


def surprises_of_pair(target: PreTrainedModel, draft: PreTrainedModel) -> Iterator[str]:
    """What makes a draft model less useful than it looks."""
    sizes = [model.num_parameters() for model in (target, draft)]
    if sizes[1] >= sizes[0]:
        yield (
            f"the draft model ({sizes[1]:,} parameters) is not smaller than the target "
            f"({sizes[0]:,}): it will not be faster"
        )
    limits = [context_of(model) for model in (target, draft)]
    if limits[1] is not None and (limits[0] is None or limits[1] < limits[0]):
        of_target = limits[0] if limits[0] is not None else "unlimited"
        yield (
            f"the draft model's context is {limits[1]} tokens, the target's {of_target}: "
            "beyond it the target goes on alone"
        )
