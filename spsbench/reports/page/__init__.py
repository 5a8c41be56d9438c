"""Parts of the HTML page: answers, exhibits (plots), tables and readable generations.

Stands on `reports.figures`; the plots are drawn by the scripts in `assets`. Read `answer`,
`exhibits`, `data` (what the scripts receive), then `paired` and `traces`; `escape` is where text
comes in.
"""
