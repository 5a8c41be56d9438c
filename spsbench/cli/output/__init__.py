"""Output of every command: text on a terminal, tokens by origin, progress, reports and plots."""
