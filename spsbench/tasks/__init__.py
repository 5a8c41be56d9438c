"""Tasks: prompts, the scores of completions, and the verdicts on programs.

Read `reader` (data files), `base` and `jsonl` (the smallest task) first, then `xsum`, `gsm8k`,
`humaneval`, and for programs `program_texts`, `verdicts`, `program_log`; extensions run programs.
"""
