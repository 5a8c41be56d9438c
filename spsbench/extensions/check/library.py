"""The model that a server should run, loaded here. Torch is loaded only for it."""

from collections.abc import Sequence
from typing import Any

from spsbench.extensions.check.weights import Weights


def load_weights(name: str, *, offline: bool = False) -> Weights:
    """Load a model in float32, to score tokens by a plain forward pass without a cache."""
    from spsbench.audit.statistical.forward import Scorer
    from spsbench.pair.load import load

    pair: Any = load(target=name, k=0, engine="eager", dtype="float32", offline=offline)
    _, loaded = pair.configured()
    scorer = Scorer(loaded.target, loaded.vocab_size, reload=False)
    tokenizer = loaded.tokenizer
    special = set(tokenizer.all_special_ids)

    def chat(text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(tokenizer.encode(ids, add_special_tokens=False))

    def texts() -> Sequence[str | None]:
        decoded = tokenizer.batch_decode([[i] for i in range(loaded.vocab_size)])
        return [None if i in special else text for i, text in enumerate(decoded)]

    return Weights(
        name=name,
        score=scorer.logits,
        encode=lambda text: list(tokenizer.encode(text)),
        chat=chat,
        texts=texts(),
        ends=frozenset(loaded.eos),
        bos=tokenizer.bos_token_id,
    )
