"""Weights as whole numbers of 8 or 4 bits with scales.

Depends on `linear_layers`. Read `codes`, then `layers`.
"""
