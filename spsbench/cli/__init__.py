"""The command line, one module per command: `main` registers the commands, `options` has the flags.

`answers` and `publish` show results, `terminal` writes, `failures` has exit codes. Heavy imports
happen inside the command functions.
"""
