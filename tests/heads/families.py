""""""

import pytest

from spsbench.settings.models import DEFAULT_HEAD

KINDS = sorted(kind for target, kind in DEFAULT_HEAD if target == "nano")
TEXT = "def fibonacci(n):\n"
FIRST = [KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
