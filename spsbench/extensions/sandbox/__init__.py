"""Run programs written by a model, each in a fresh interpreter, or refuse (`sps score`).

Stands on the program texts and verdicts of `tasks`, without torch. Read `levels`, `choice`,
`confinement` and `jail` (what confines), `runner` (one program), then `scoring` (all programs of a
run).
"""
