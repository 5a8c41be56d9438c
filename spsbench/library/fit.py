"""Fitting a schedule on traces: `sps plan --fit disco:out=FILE`."""

from collections.abc import Sequence
from pathlib import Path

from spsbench.errors import UsageError
from spsbench.forecast.disco import Fitted, fit_along, write_classifier
from spsbench.spec import Spec
from spsbench.store.traces import Traces, read_traces

ARGUMENTS = ("out", "draft")


def fit_schedule(spec: Spec, paths: Sequence[Path]) -> Fitted:
    """Fit what `spec` names on the traces in files or runs, and write it to its `out`.

    Args:
        spec: `disco:out=FILE`, with `draft=NAME` where several drafts were traced.
        paths: files of traces, or runs that have some.

    Raises:
        UsageError: nothing that can be fitted, no file to write, or no such draft.
        SpsError: traces that cannot be used, a file that cannot be written.
    """
    given = {name: str(value) for name, value in spec.args}
    unknown = [name for name in given if name not in ARGUMENTS]
    if spec.name != "disco" or unknown or "out" not in given:
        raise UsageError(f"--fit {spec}: expected disco:out=FILE, or disco:out=FILE,draft=NAME")
    traces = read_traces(paths)
    name = _draft(traces, given.get("draft"), spec)
    fitted = fit_along(along for _, along in traces.of(name))
    write_classifier(Path(given["out"]).expanduser(), fitted)
    return fitted


def _draft(traces: Traces, asked: str | None, spec: Spec) -> str:
    sampled = [name for name, draft in traces.drafts.items() if draft.sampled]
    if asked is None and len(sampled) == 1:
        return sampled[0]
    if asked not in sampled:
        raise UsageError(
            f"--fit {spec}: expected a draft that is sampled, which the traces hold: "
            f"{', '.join(sampled) or 'there is none'}. Name it with draft=NAME"
        )
    return asked
