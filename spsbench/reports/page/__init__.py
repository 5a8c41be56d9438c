"""Parts of the HTML page: answers, exhibits (plots), tables and readable generations.

Stands on `reports.reporter`; plots are SVG by `reports.plots`, `assets` has the HTML and scripts
that show generations. Read `answer`, `exhibits`, `data` (records in one pass), then
`token_origins`.
"""
