"""Parts of generations before and behind a marker, such as `</think>`, for rows of their own."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from spsbench.errors import UsageError
from spsbench.loop.text import Tokenizer
from spsbench.reports.page.token_origins import pieces, tokenizer_of
from spsbench.settings.cell import Cell
from spsbench.settings.records import MEASURES, Record


class Segments:
    """Cut records at the round that completes the first `marker` of their texts.

    That round is before the marker; a text without the marker has no second part. Parts hold counts
    and no times: a part has no prefill, and the times of its rounds no baseline.
    """

    def __init__(self, cells: Sequence[Cell], marker: str) -> None:
        self._cells, self._marker = {cell.id: cell for cell in cells}, marker
        self._tokenizers: dict[str, Tokenizer | None] = {}

    def __call__(self, record: Record) -> Iterator[Record]:
        """Yield one or two parts; none of a failure, or where an engine told no tokens.

        Raises:
            UsageError: the tokenizer of the target is not on this machine.
        """
        if record.error is not None or not record.tokens:
            return
        tokens = self._until_marker(record)
        begins = accumulate((turn.emitted for turn in record.rounds[:-1]), initial=0)
        rounds = sum(begin < tokens for begin in begins)
        yield part(record, slice(rounds), f"before {self._marker}")
        if rounds < len(record.rounds):
            yield part(record, slice(rounds, None), f"behind {self._marker}")

    def _until_marker(self, record: Record) -> int:
        """Return the number of tokens with which the marker is complete; all without one."""
        text = ""
        tokenizer = WithSpecialTokens(self._tokenizer(record))
        for number, piece in enumerate(pieces(tokenizer, (), record.tokens), start=1):
            text = text[-len(self._marker) :] + piece
            if self._marker in text:
                return number
        return len(record.tokens)

    def _tokenizer(self, record: Record) -> Tokenizer:
        target = self._cells[record.cell].models.target
        if target.id not in self._tokenizers:
            self._tokenizers[target.id] = tokenizer_of(target)
        tokenizer = self._tokenizers[target.id]
        if tokenizer is None:
            raise UsageError(
                f"`marker` needs the tokenizer of {target.id}, which is not on this machine: "
                "expected a folder, or files in the cache. Report where the run was made"
            )
        return tokenizer


class WithSpecialTokens:
    """A tokenizer that writes special tokens, which markers such as `[/THINK]` often are."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Decode `token_ids`, special ones among them."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)


def part(record: Record, rounds: slice, group: str) -> Record:
    """Return some rounds of a record as a record without times."""
    ends = [0, *accumulate(turn.emitted for turn in record.rounds)]
    first, last, _ = rounds.indices(len(record.rounds))
    measures = {measure.field: None for measure in MEASURES}
    return replace(
        record,
        tokens=record.tokens[ends[first] : ends[last]],
        rounds=record.rounds[rounds],
        text="",
        laws=None,
        group=group,
        flags=(*record.flags, "unlike"),
        **measures,  # type: ignore[arg-type]
    )
