"""The recipe of the bundled pair: a corpus, a target trained from scratch, a draft model for it.

`python recipes/nano --out DIR` runs it. Chapters, in order of reading: `corpus` (texts, tokenizer,
batches; over `stdlib`, `functions` and `news`), `train` (the target), `measure` (figures and card),
`__main__` (all steps; the draft model is trained by `spsbench.extensions.training.command`).
"""
