"""Metrics from records: rates, intervals, gains, and parity of quality."""
