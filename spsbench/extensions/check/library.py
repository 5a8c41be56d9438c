"""The model that a server should run, loaded here: torch is loaded for it alone."""

from typing import Any

from spsbench.extensions.check.weights import Weights


def load_weights(name: str, *, offline: bool = False) -> Weights:
    """Load a model in float32, to score tokens by a plain forward pass without a cache."""
    from spsbench.audit.statistical.forward import Scorer
    from spsbench.pair.load import load

    pair: Any = load(target=name, k=0, engine="eager", dtype="float32", offline=offline)
    _, loaded = pair.configured()
    tokenizer = loaded.tokenizer

    def chat(text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return list(tokenizer.encode(prompt, add_special_tokens=False))

    texts = tokenizer.batch_decode([[i] for i in range(loaded.vocab_size)])
    special = set(tokenizer.all_special_ids)
    return Weights(
        name=name,
        score=Scorer(loaded.target, loaded.vocab_size, reload=False).logits,
        encode=lambda text: list(tokenizer.encode(text)),
        chat=chat,
        texts=[None if i in special else text for i, text in enumerate(texts)],
        ends=frozenset(loaded.eos),
        bos=tokenizer.bos_token_id,
    )
