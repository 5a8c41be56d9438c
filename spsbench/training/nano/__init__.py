"""The recipe of the bundled pair: a corpus -> a tokenizer, a target and its draft model."""
