"""Drafts of this package inside vLLM, by its `custom_class` proposer of the V1 runner.

`rules` says which drafters vLLM can serve, and with which options; `proposer` is what vLLM imports,
and needs no more than torch, numpy, msgspec and tqdm.
"""
