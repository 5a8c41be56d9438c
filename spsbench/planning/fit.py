"""Schedules fitted on traces: `disco` learns when the draft is worth one more token."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from spsbench.errors import MissingError, UsageError
from spsbench.metrics.classifier import Fitted, Slots, fit, write_classifier
from spsbench.metrics.intervals import Floats
from spsbench.planning.forecast.rounds import Acceptances, room_of, rounds
from spsbench.spec import Spec
from spsbench.store.traces import SampledDraft, read_traces

SLOTS = 20  # slots of a draft in the rounds of a fit
RARE = 1e-6  # chance from which on a slot at a position counts


def fit_schedule(spec: Spec, paths: Sequence[Path]) -> Fitted:
    """Fit the schedule that `spec` names on traces of files or runs; write it to its `out`.

    Returns the fit: a regression over all positions of one sampled draft on the chance that `sps`
    accepts, `sum_x min(p, q)`; at temperature 0, on whether draft and target agree.

    `spec` is `disco:out=FILE`, with `draft=NAME` (`draft=model nano-draft`) where several sampled
    drafts were traced. UsageError: no such spec or draft, or too few positions. MissingError: no
    traces, or no writable `out`. SpsError: traces are unusable or differ, or writing failed.
    """
    out, traces = check_fit(spec), read_traces(paths)
    drafts = {str(name): name for name, of in traces.drafts.items() if of.sampled and not of.most}
    drafting = drafts[named_draft([*drafts], spec)]
    sampled = [trace for _, trace in traces.of(drafting) if isinstance(trace, SampledDraft)]
    ends = [len(trace.p) if trace.reach is None else trace.reach for trace in sampled]
    entropy, peak, overlap = (
        np.concatenate([getattr(t, column)[:end] for t, end in zip(sampled, ends, strict=True)])
        for column in ("entropy", "peak", "overlap")
    )
    kept = np.clip(overlap, 0.0, 1.0)  # float32 sums
    fitted = fit(entropy, peak, kept, slots_of(np.split(kept, np.cumsum(ends)[:-1])))
    write_classifier(out, fitted)
    return fitted


def slots_of(texts: Sequence[Floats]) -> Slots:
    """Return positions, slots and weights, [S] each: an entry for each slot that tests a position.

    `texts` has one or more [L] acceptance probabilities, a text each. Positions count through all,
    slots from 0; a weight is the expected number of tests, above `RARE`, in rounds of K = `SLOTS`.
    """
    parts, first = list[Slots](), 0
    for kept in texts:
        expected = rounds(Acceptances.sampled(kept, None, "sps", SLOTS), SLOTS, room_of(len(kept)))
        _, tested = expected.slots
        rows, slots = np.nonzero(tested > RARE)
        parts.append((first + expected.starts[rows] + slots, slots, tested[rows, slots]))
        first += len(kept)
    positions, places, weights = (np.concatenate(part) for part in zip(*parts, strict=True))
    return positions, places, weights


def check_fit(spec: Spec, drafts: Sequence[str] | None = None) -> Path:
    """Return the output file of a fit, `~` expanded, if `spec` is valid.

    `drafts` are the sampled drafts that the traces will hold; None: they are not checked.
    UsageError: another form than `disco:out=FILE`, with or without `draft=NAME`, or as
    `named_draft`. MissingError: the file could not be written; none is made here.
    """
    arguments = dict(spec.args)
    if spec.name != "disco" or arguments.keys() - {"draft"} != {"out"}:
        raise UsageError(f"`fit` {spec}: expected disco:out=FILE, or disco:out=FILE,draft=NAME")
    out = Path(str(arguments["out"])).expanduser()
    if out.is_dir() or not os.access(out if out.exists() else out.parent, os.W_OK):
        raise MissingError(
            f"cannot write {out} (`fit`): expected a file in a folder of yours. Check it"
        )
    if drafts is not None:
        named_draft(drafts, spec)
    return out


def named_draft(sampled: Sequence[str], spec: Spec) -> str:
    """Return the draft that `spec` names, or the only one of `sampled`.

    UsageError: `spec` names none and there is not just one, or the draft is not among `sampled`.
    """
    name = dict(spec.args).get("draft", sampled[0] if len(sampled) == 1 else None)
    if name not in sampled:
        raise UsageError(
            f"`fit` {spec}: expected a draft that is sampled, which the traces hold: "
            f"{', '.join(sampled) or 'there is none'}. Name it with draft=NAME"
        )
    return str(name)
