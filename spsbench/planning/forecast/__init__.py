"""Forecasts of speculation: cost and gain from measured costs and recorded traces.

Stands on `metrics`. Read `acceptance` and `replay` (rounds from recorded chances), `forecasts` (a
gain and its interval), `recommendation` (the verdict), then `batch_gains`.
"""
