"""Output of every command: text on a terminal, progress, reports and plots.

Stands on `reports`. Read `terminal` (what is written is escaped here), `publish` (a report in a
format), then `progress` and `screen`.
"""
