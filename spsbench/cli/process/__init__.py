"""The process of a command: exit codes of failures, Ctrl-C, and several ranks.

Stands on `errors` and `parallel`. Read `failures` (an error becomes a line and a code),
`interrupt`, then `launch` and `ranks`.
"""
