"""The command line, one noun a file. Heavy imports wait inside the command functions."""
