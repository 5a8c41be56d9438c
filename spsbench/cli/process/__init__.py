"""The process of a command: exit codes of failures, Ctrl-C, and several ranks."""
