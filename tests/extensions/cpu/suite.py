"""What holds in the whole suite: nothing that was measured on this machine has a say in a test.

Nor has what was measured in another test. Tests of the core run this engine too, as the default.
"""

from itertools import product

from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.packing import tuning

tuning.tuning_file = lambda: None
CODES = "int8", "int4", "int4_least"
of_codes = [f"{how}_{codes}" for how in ("product", "dots") for codes in CODES]
tuning._current.update(dict.fromkeys(product(KINDS, [tuning.PRODUCT, *of_codes]), tuning.USUAL))
