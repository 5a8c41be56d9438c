"""The command line, one module per command: `main` registers the commands, `options` has the flags.

`output` writes to the terminal and to files, `process` has exit codes, signals and ranks. Heavy
imports happen inside the command functions.
"""
