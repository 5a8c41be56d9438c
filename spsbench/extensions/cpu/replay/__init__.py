"""Decoder layers captured once and replayed by C, without their Python.

Depends on `packing`, `quantization` and `kernels`. Read `layer_replay`, then `graph_capture`,
then `layer_program` and `whole_pass`.
"""
