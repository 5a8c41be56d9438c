"""Threads that wait for each other sleep soon, unless the user has said how they wait."""

import subprocess
import sys

from spsbench.hardware.environment import BOUND, bound_spinning


def test_the_users_word_stands():
    for said in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}):
        environment = dict(said)
        bound_spinning(environment)
        assert environment == said
    environment = {}
    bound_spinning(environment)
    assert environment == {"GOMP_SPINCOUNT": BOUND}


def test_it_is_said_before_torch_is_imported():
    program = (
        "import os, sys\n"
        "from spsbench.models.prepare import check_environment\n"
        "check_environment()\n"
        "assert 'torch' not in sys.modules\n"
        "print(os.environ['GOMP_SPINCOUNT'])\n"
    )
    bare = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=bare, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == BOUND
