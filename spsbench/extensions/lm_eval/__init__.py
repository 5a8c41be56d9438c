"""EleutherAI's lm-evaluation-harness over a pair: `sps lm-eval`, and its model `sps`.

`model` is a language model of the harness: texts by speculative sampling, likelihoods by a plain
pass of the target. `command` registers it and hands over to the harness's own command line. The
harness comes with the extra `lm-eval`; nothing is imported from it before the command runs.
"""
