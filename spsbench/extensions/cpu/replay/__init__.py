"""Passes recorded once as steps and run by C, without their Python.

Depends on `packing`, `quantization` and `kernels`. Read `record`, then `program`, then `replay`
and `bodies`.
"""
