"""Records become figures: rates, intervals, gains, parity."""
