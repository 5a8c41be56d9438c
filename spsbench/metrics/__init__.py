"""Metrics from records: rates, intervals, gains, and parity of quality; torch-free.

Stands on `settings.records`. Read `rates` (one generation), `summaries` (a cell), `intervals`,
then `compare`, `parity` and `costs` (seconds of the parts of a round).
"""
