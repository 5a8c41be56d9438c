"""What a model is given of a sample: its text, or a conversation up to the model's turn."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spsbench.errors import SpsError
from spsbench.models.tokenizers import encode, encode_chat
from spsbench.settings.cell import Work
from spsbench.settings.records import Key, Record
from spsbench.settings.task import Sample


class UnansweredError(SpsError):
    """The turn before has no answer: this one cannot be asked."""


def prompt_ids(
    tokenizer: Any, work: Work, prompt: str, before: Sequence[Mapping[str, str]] = ()
) -> list[int]:
    """The tokens of a prompt; under `work.chat` in the model's template, after its system message.

    Raises:
        DataError: as `encode` and `encode_chat`.
    """
    if not work.chat:
        return encode(tokenizer, prompt)
    start = [{"role": "system", "content": work.system}] if work.system else []
    return encode_chat(tokenizer, [*start, *before, {"role": "user", "content": prompt}])


class Answers:
    """What was answered so far, for the turns that come after.

    Args:
        samples: of a part.
        records: those there are already.
    """

    def __init__(self, samples: Iterable[Sample], records: Iterable[Record] = ()) -> None:
        self._samples = {sample.id: sample for sample in samples}
        self._awaited = {s.after for s in self._samples.values() if s.after is not None}
        self._texts: dict[Key, str] = {}
        for record in records if self._awaited else ():
            self.add(record)

    def add(self, record: Record) -> None:
        """Keep an answer that a later turn will need."""
        if record.sample in self._awaited and record.error is None:
            self._texts[record.key] = record.text

    def before(self, cell: str, sample: Sample, repeat: int) -> list[dict[str, str]]:
        """The turns before a sample's own, each with its answer.

        Raises:
            UnansweredError: one of them failed.
        """
        turns: list[dict[str, str]] = []
        while sample.after is not None:
            sample = self._samples[sample.after]
            if (cell, sample.id, repeat) not in self._texts:
                raise UnansweredError(f"no answer to {sample.id}: expected one to go on from")
            said = self._texts[cell, sample.id, repeat]
            turns[:0] = [
                {"role": "user", "content": sample.prompt},
                {"role": "assistant", "content": said},
            ]
        return turns
