"""Forecasts of speculation: cost and gain, computed from measured costs and recorded traces."""
