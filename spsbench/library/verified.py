"""What an audit found, as a library gives it."""

from dataclasses import dataclass
from typing import Any

from spsbench.audit.text.audit import AuditVerdict, Finding
from spsbench.audit.text.greedy import Greedy


@dataclass(frozen=True, slots=True)
class Held:
    """The result of an audit of one configuration; true only if it held."""

    name: str
    settings: dict[str, Any]
    result: Finding | Greedy

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
