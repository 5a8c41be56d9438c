"""What an audit found, as a library gives it."""

from dataclasses import dataclass
from typing import Any

from spsbench.audit.statistical.audit import AuditVerdict, Finding
from spsbench.audit.statistical.greedy import Greedy
from spsbench.settings.cell import Cell


@dataclass(frozen=True, slots=True)
class Held:
    """The result of an audit of one configuration; true only if it held."""

    name: str
    settings: dict[str, Any]
    result: Finding | Greedy
    advice: str = ""  # of a bias: what may be its cause, and what tells causes apart

    @property
    def verdict(self) -> AuditVerdict:
        """held, bias found, or not valid: its own controls failed, so that it says nothing."""
        return self.result.verdict

    @property
    def line(self) -> str:
        """The result in a sentence, with the size of the bias that would have been caught."""
        return self.result.line

    def __bool__(self) -> bool:
        return self.verdict is AuditVerdict.HELD

    def __str__(self) -> str:
        return f"{self.name}: {self.line}"


def advice_on(cell: Cell, result: Finding | Greedy) -> str:
    """What may cause the bias that was found in `cell`, and which command tells causes apart.

    Nothing where plain sampling is biased too, where tokens were impossible, or where another
    library's loop made the text.
    """
    if not isinstance(result, Finding) or result.verdict is not AuditVerdict.BIAS:
        return ""
    if result.shared or result.sps.impossible or not cell.method.own_loop:
        return ""
    rule = f"sps verify rules --verifier {cell.method.verifier}"
    return (
        "A drafter that misreports p, a wrong residual and a row of q or p that is shifted by a "
        f"token all look like this. `{rule}` finds a wrong residual or a shifted row of the rule, "
        f"`{rule} --drafter {cell.method.drafter}` a drafter that misreports p: then it is BIASED "
        "with this drafter alone. If both hold, look below them: at a row that the engine or its "
        "cache shifts (compare with --engine eager), or at weights of the drafter, which tables "
        "cannot stand for."
    )
