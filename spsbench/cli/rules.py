"""`sps verify rules`: enumerate the pairings, print their table and conclusion."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from spsbench.audit.exact.cases import LOOKAHEAD
from spsbench.audit.exact.pairings import RulePairing, pairings
from spsbench.audit.exact.rules import RuleRow, enumerate_pairings
from spsbench.cli.progress import EVERY, progress
from spsbench.cli.publish import show
from spsbench.cli.terminal import is_terminal, say
from spsbench.errors import Exit
from spsbench.hardware.environment import usable_cores
from spsbench.hardware.files import clock
from spsbench.loop.types import Guarantee
from spsbench.reports.reporter import Section, TextTable
from spsbench.settings.records import SCHEMA
from spsbench.spec import Spec

NAMES = ("verifier", "drafter", "schedule", "claims", "verdict", "where")
HEADINGS = (*NAMES, "K to", "total variation")
NAMED = 2  # pairings in such a line
FEW = 4  # processes: the start of one costs as much as five pairings
PROVED = (Guarantee.EXACT.value, Guarantee.GREEDY.value)


class PairingCount:
    """Progress of an enumeration: finished pairings, and pairings in progress."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self._began, self._now = time.monotonic(), Counter[str]()

    def begin(self, pairing: RulePairing) -> None:
        """Name a pairing among those in progress."""
        self._now[_pairing_name(pairing)] += 1

    def add(self, pairing: RulePairing) -> None:
        """Count a pairing as done, and name it no more."""
        self.done += 1
        self._now[_pairing_name(pairing)] -= 1

    def __str__(self) -> str:
        """Return text like `12/28 pairings in 1:30, now sps x model x constant, block x ...`."""
        names = [name for name, times in list(self._now.items()) if times]
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        now = ", ".join(names[:NAMED]) + more
        passed = clock(time.monotonic() - self._began)
        return f"{self.done}/{self.total} pairings in {passed}{now and f', now {now}'}"


def _pairing_name(pairing: RulePairing) -> str:
    return f"{pairing.verifier} x {pairing.drafter} x {pairing.schedule}"


def enumerate_rules(
    verifiers: Sequence[Spec],
    schedules: Sequence[Spec],
    drafters: Sequence[Spec] = (),
    *,
    deep: bool,
    format: str,
) -> int:
    """Enumerate the pairings of the named parts, print the table; return the code (`exit_code_of`).

    Without a name of a kind, all of the registry are paired; `deep` adds larger trees and takes all
    cores in place of `FEW`. Progress and conclusion go to stderr.
    """
    work = pairings(verifiers, schedules, drafters, deep=deep)
    count = PairingCount(len(work))
    if not is_terminal(sys.stderr):
        say(f"enumerating {len(work)} pairings, with a line each {EVERY:g} s")
    with progress(count) as move:

        def notify(pairing: RulePairing, row: RuleRow) -> None:
            count.add(pairing)
            move()

        rows = enumerate_pairings(
            work, usable_cores() if deep else min(usable_cores(), FEW), notify, count.begin
        )
    code = exit_code_of(rows)
    say(conclusion(rows))
    listed = [asdict(row) | {"verdict": row.verdict} for row in rows]
    section = Section(title="", status="open", line="", tables=(rules_table(rows),))
    show({"schema": SCHEMA, "exit": int(code), "rows": listed}, format, section)
    return code


def exit_code_of(rows: Sequence[RuleRow]) -> Exit:
    """Return BIAS if a guarantee is violated, else NOT_VALID if one could not be shown, else OK.

    Rows that are left out count only if there are no others, or no rows at all: NOT_VALID.
    """
    if any(row.verdict == "BIASED" for row in rows):
        return Exit.BIAS
    any_checked = any(row.left_out is None for row in rows)
    hidden = any(row.verdict == "not shown" for row in rows)
    return Exit.NOT_VALID if hidden or not any_checked else Exit.OK


def conclusion(rows: Sequence[RuleRow]) -> str:
    """Return a line: verifiers with a bias; else not valid, and why; or held, with counts."""
    biased = sorted({row.verifier for row in rows if row.verdict == "BIASED"})
    if biased:
        drafters = {row.drafter for row in rows if row.verdict == "BIASED"}
        alone = f", with drafter {drafters.pop()} alone" if len(drafters) == 1 else ""
        return (
            f"BIAS FOUND: {', '.join(biased)} does not keep the distribution that it claims{alone}"
        )
    if hidden := sorted({row.verifier for row in rows if row.verdict == "not shown"}):
        return f"NOT VALID: could not enumerate {', '.join(hidden)}"
    if all(row.left_out is not None for row in rows):
        return "NOT VALID: no pairing could be set up here"
    proved = [row for row in rows if row.verdict in PROVED]
    refused = [row for row in rows if row.refused is not None]
    rightly = sum(row.wrong for row in refused)
    depths = sorted({row.lookahead for row in proved if row.lookahead > LOOKAHEAD} or {LOOKAHEAD})
    upto = " to ".join(map(str, dict.fromkeys((depths[0], depths[-1]))))
    parts = [
        f"held: {len(proved)} pairings keep their promise to 1e-12, whole texts up to K = "
        f"{LOOKAHEAD} and single rounds up to K = {upto}",
        f"{rightly} of {len(refused)} refused pairings would have been biased",
    ]
    if left := sum(row.left_out is not None for row in rows):
        parts.append(f"{left} left out, see below")
    parts.append("not enumerated: larger K, vocabularies and trees")
    return "; ".join(parts)


def rules_table(rows: Sequence[RuleRow]) -> TextTable:
    """Return the table, a row a pairing, with errors, refusals and examples as remarks below."""
    errors = list(dict.fromkeys(row.error for row in rows if row.error))
    cells = []
    for row in rows:
        where = row.left_out or (row.worst if row.wrong else "")
        if row.error:
            where = f"error {errors.index(row.error) + 1}, below"
        figures = "n/a", "n/a"
        if row.distance is not None:
            figures = str(row.lookahead), f"{row.distance:.3g}"
        names = row.verifier, row.drafter, row.schedule, row.guarantee, row.verdict, where
        cells.append((*names, *figures))
    remarks = [
        f"error {number}, in {sum(row.error == error for row in rows)} of {len(rows)} pairings: "
        f"{error}"
        for number, error in enumerate(errors, 1)
    ]
    refusals = dict.fromkeys(row.refused for row in rows if row.refused)
    remarks += [f"refused: {reason}" for reason in refusals]
    remarks += [
        f"BIASED: {row.verifier} x {row.drafter} x {row.schedule}, {row.worst}: {row.example}"
        for row in rows
        if row.verdict == "BIASED" and row.example
    ]
    for row in {row.verifier: row for row in reversed(rows) if row.smallest}.values():
        remarks.append(f"smallest case of {row.verifier} x {row.drafter}:")
        remarks += [f"  {line}" for line in row.smallest]
    title = "Verifier x drafter x schedule, by enumeration of every uniform"
    return TextTable(title, HEADINGS, cells, remarks, names=len(NAMES))
