"""Training of drafters for a target: a draft model or a head learns from the target's own texts.

Read `conduct` (the steps of a training) first, then `texts` and `generation` (the data),
`students/` (what learns), `loop`, `teacher`, `losses`, `acceptance`, and `export` (the result).
"""
