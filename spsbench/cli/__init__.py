"""The command line, one module per command. Heavy imports happen inside the command functions."""
