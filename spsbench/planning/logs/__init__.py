"""Logs of served requests as texts of a plan: no model of the target and no server is needed.

It stands on `planning.forecast` and on drafters that read texts alone. Read `account`,
`chats`, `entries` and `requests` (lines become requests), `tokens`, `texts` (requests become
rounds), `plan_log`, then `tables`.
"""
