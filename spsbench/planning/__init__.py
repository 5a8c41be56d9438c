"""Plans: measured costs and traces, predictions from them, and a recommendation."""
