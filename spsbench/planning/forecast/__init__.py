"""Forecasts of speculation: cost and gain from measured costs and recorded traces.

Stands on `metrics`. Read `rounds` (rounds from recorded probabilities), `forecasts` (a gain and its
interval), `predictions`, `recommendation` (the verdict), then `batch_gains`.
"""
