"""Fitting a schedule on traces: `sps plan --fit disco:out=FILE`."""

import os
from collections.abc import Sequence
from pathlib import Path

from spsbench.errors import MissingError, PermissionDeniedError, UsageError
from spsbench.planning.forecast.disco import Fitted, fit_along, write_classifier
from spsbench.spec import Spec
from spsbench.store.traces import read_traces

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
    out = check_fit(spec)
    traces = read_traces(paths)
    name = _draft([n for n, draft in traces.drafts.items() if draft.sampled], spec)
    fitted = fit_along(along for _, along in traces.of(name))
    write_classifier(out, fitted)
    return fitted


def check_fit(spec: Spec, drafts: Sequence[str] | None = None) -> Path:
    """The file that a fit writes, checked before there are traces.

    Args:
        drafts: those that the traces will hold, of the sampled ones; None: not known yet.

    Raises:
        UsageError: nothing that can be fitted, no file to write, or no such draft.
        MissingError, PermissionDeniedError: a file that cannot be written.
    """
    given = {name: str(value) for name, value in spec.args}
    unknown = [name for name in given if name not in ARGUMENTS]
    if spec.name != "disco" or unknown or "out" not in given:
        raise UsageError(f"--fit {spec}: expected disco:out=FILE, or disco:out=FILE,draft=NAME")
    out = Path(given["out"]).expanduser()
    if out.is_dir() or not out.parent.is_dir():
        raise MissingError(
            f"cannot write {out} (--fit): expected a file in a folder that is there. Check it"
        )
    if not os.access(out if out.exists() else out.parent, os.W_OK):
        raise PermissionDeniedError(
            f"cannot write {out} (--fit, permission denied): expected a place that can be "
            "written. Name another"
        )
    if drafts is not None:
        _draft(drafts, spec)
    return out


def _draft(sampled: Sequence[str], spec: Spec) -> str:
    asked = dict(spec.args).get("draft")
    if asked is None and len(sampled) == 1:
        return sampled[0]
    if asked is None or str(asked) not in sampled:
        raise UsageError(
            f"--fit {spec}: expected a draft that is sampled, which the traces hold: "
            f"{', '.join(sampled) or 'there is none'}. Name it with draft=NAME"
        )
    return str(asked)
