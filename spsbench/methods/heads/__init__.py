"""Networks of drafter heads in plain torch; `models/heads` reads them from files.

Stands on `loop` and on sessions of `engines`. Read `network` (the interface), `layers` and
`frontier`, then `parallel` (heads that draft in one pass) and `reader`.
"""
