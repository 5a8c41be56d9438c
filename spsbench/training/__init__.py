"""Training of the bundled pair: tokenizer, data, target, draft, and what they measure."""
