"""What a model's configuration says of its limits."""

from transformers import PreTrainedModel


def context_of(model: PreTrainedModel) -> int | None:
    """The tokens that fit the context of `model`; None = unlimited."""
    limit: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit


def rows_of(model: PreTrainedModel) -> int:
    """Rows of its logits: the vocabulary, and what pads it."""
    rows: int = model.config.get_text_config().vocab_size
    return rows


def slides(model: PreTrainedModel) -> bool:
    """Whether its attention forgets: configurations without a window say None, or 0."""
    return bool(getattr(model.config.get_text_config(), "sliding_window", None))
