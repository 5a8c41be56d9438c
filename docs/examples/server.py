"""Serve a small language model that speculates, to try `sps check` on.

From a checkout: `python docs/examples/server.py PORT`, and with `--greedy` one whose sampled text
is wrong.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.oracles.stub import Engine, Patient, Stub, handler_of

port, *flags = sys.argv[1:]
engine = Engine(defect="verifies greedily" if "--greedy" in flags else None)
server = Patient(("127.0.0.1", int(port)), handler_of(Stub(engine)))
print(f"serving on http://127.0.0.1:{port}", flush=True)
server.serve_forever()
