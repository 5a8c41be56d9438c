"""Train drafters: a draft model or a head learns from texts that its target writes (`sps train`).

Stands on `models`, `methods`, `parallel` and `workers`, and on torch; nothing imports it. Read
`command` and `run` (the steps of a training), `texts` (the data), `students` (what learns), then
`loop`, `losses`, `acceptance`, and `export` (the result).
"""
