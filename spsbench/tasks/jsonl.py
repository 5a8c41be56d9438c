"""The user's prompts, from a file; ROUGE-2 scores those with references.

A row is `{"id"?, "prompt" or "text", "reference"?, "group" or "category"?, "json_schema"?}`, or a
question of Spec-Bench and MT-Bench, `{"question_id", "category", "turns", "reference"?}`; a line
that is no object is a prompt itself. A chat model gets all turns, each after the answers to the
turns before; a base model gets the first turn. The texts of a row follow its `json_schema`, in
place of the one of the command.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from spsbench.errors import DataError
from spsbench.metrics.parity import average
from spsbench.settings.constraint import check_grammar, read_schema
from spsbench.settings.task import Fits, Sample, Task
from spsbench.store.run_folder import TURN
from spsbench.tasks import rouge
from spsbench.tasks.reader import Row, distinct, fingerprint, rows, well_formed


class Jsonl(Task):
    """The prompts of a file, as a task."""

    name = "jsonl"
    data = "path"
    quality = rouge.QUALITY

    def __init__(self, path: str = "", max_new_tokens: int = 128, stop: str = "") -> None:
        r"""Read the prompts.

        Args:
            path: JSONL or text (perhaps gzipped), parquet, or a folder of
                `datasets.Dataset.save_to_disk`.
            max_new_tokens: maximum number of tokens to generate.
            stop: texts that end a completion, parted by `|`; `\n` and `\t` are read as in Python.

        Raises:
            ValueError: no path, or `max_new_tokens` is below 1.
            SpsError: the file is missing or unusable; names the line.
        """
        if not path:
            raise ValueError("no path: expected jsonl:path=FILE")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens is {max_new_tokens}: expected 1 or more")
        self.max_new_tokens = max_new_tokens
        self.stop = tuple(_unescaped(text) for text in stop.split("|") if text)
        self._path = Path(path).expanduser()
        self._later: dict[str, list[str]] = {}  # turns after the first, by sample
        with closing(rows(self._path, "prompt")) as numbered:
            self._samples, repeated = distinct(
                (row.where, self._read(row, number)) for number, row in enumerate(numbered, 1)
            )
        if not self._samples:
            raise DataError(f"no prompts ({self._path}): expected one a line. Check the path")
        self.title = self._described(repeated)
        scored = any(sample.reference is not None for sample in self._samples)
        self.metrics = rouge.METRICS if scored else ()
        self.constrained = any(sample.json_schema for sample in self._samples)
        self.prompt_version = f"raw-1-{fingerprint(_parts(self._samples))}"

    def instruct(self) -> "Jsonl":
        """Return the same prompts as messages, with every turn of a conversation."""
        task = copy.copy(self)
        task._samples = [turn for sample in self._samples for turn in self._turns(sample)]
        task.prompt_version = f"ask-1-{fingerprint(_parts(task._samples))}"
        return task

    def samples(self, fits: Fits) -> Iterator[Sample]:
        """Yield all prompts in the order of the file.

        Raises:
            DataError: a prompt does not fit the context; prompts are never cut.
        """
        for sample in self._samples:
            if not fits(sample.prompt):
                raise DataError(
                    f"prompt {sample.id!r} ({self._path}): expected it to fit the context with "
                    f"{self.max_new_tokens} tokens to come. Shorten it, or ask for fewer tokens"
                )
            yield sample

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """Return ROUGE-2 F in 0..100 against the reference; empty without a reference."""
        return {} if sample.reference is None else rouge.score(completion, sample.reference)

    @staticmethod
    def combine(scores: Sequence[Sequence[dict[str, float]]]) -> dict[str, list[float]]:
        """Return each metric's mean over the repeats of each sample with a reference."""
        return average(scores)

    def _read(self, row: Row, number: int) -> Sample:
        """Return the sample of a row, and keep the turns after its first."""
        sample = _sample(row, number)
        if _text_key(row) == "turns":
            self._later[sample.id] = [_turn(row, turn) for turn in row.values["turns"][1:]]
        return sample

    def _turns(self, first: Sample) -> Iterator[Sample]:
        yield first
        before = first.id
        for number, text in enumerate(self._later.get(first.id, ()), start=2):
            name = f"{first.id}{TURN}{number}"
            yield Sample(name, text, group=first.group, after=before, json_schema=first.json_schema)
            before = name

    def _described(self, repeated: int) -> str:
        references = [s.reference for s in self._samples if s.reference is not None]
        parts = [f"{self._path}: {len(self._samples):,} prompts", f"{len(references):,} references"]
        if repeated:
            parts.append(f"{repeated:,} repeated lines left out")
        if wordless := sum(not rouge.has_words(reference) for reference in references):
            parts.append(f"{wordless:,} references without Latin words, which score 0")
        return ", ".join(parts)


def _parts(samples: Sequence[Sample]) -> list[str]:
    """Return what a version of the prompts depends on."""
    return [
        text
        for sample in samples
        for text in (sample.id, sample.prompt, *filter(None, [sample.json_schema]))
    ]


def _sample(row: Row, number: int) -> Sample:
    """Return the sample of a row, in any format; without an id it is named by its number."""
    key = _text_key(row)
    ids = [id_key for id_key in ("id", "question_id") if id_key in row.values]
    name = row.name(ids[0]) if ids else f"prompt-{number}"
    prompt = _first_turn(row) if key == "turns" else row.text(key)
    if not prompt:
        raise DataError(f"an empty prompt ({row.where}): expected a text. Give it one")
    group = _optional(row, "group")
    return Sample(
        name,
        prompt,
        reference=_optional(row, "reference"),
        group=_optional(row, "category") if group is None else group,
        json_schema=_schema(row),
    )


def _text_key(row: Row) -> str:
    return next((key for key in ("prompt", "text", "turns") if key in row.values), "prompt")


def prompts_in(path: Path) -> tuple[str, ...]:
    """Return the prompts of a file, of a conversation its first turn.

    Raises:
        SpsError: as `Jsonl`.
    """
    return tuple(sample.prompt for sample in Jsonl(str(path)).samples(lambda prompt: True))


def _schema(row: Row) -> str:
    """Return the schema of a row, an object or its text; empty where there is none or null."""
    value = row.values.get("json_schema")
    if value is None:
        return ""
    where = f"'json_schema' ({row.where})"
    if not isinstance(value, dict | str) or (value and isinstance(value, str) and value[0] != "{"):
        raise DataError(f"{where}: expected a JSON schema. Correct the line")
    schema = read_schema(value, where)
    check_grammar("json_schema", schema, where)
    return schema


def _first_turn(row: Row) -> str:
    turns = row.values["turns"]
    if not isinstance(turns, list) or not turns:
        raise DataError(f"'turns' ({row.where}): expected a list of texts. Correct the line")
    return _turn(row, turns[0])


def _turn(row: Row, turn: object) -> str:
    if not isinstance(turn, str):
        raise DataError(f"'turns' ({row.where}): expected a list of texts. Correct the line")
    return well_formed(turn, f"{row.where}, 'turns'")


def _optional(row: Row, key: str) -> str | None:
    """Return the text under `key`, the first of a list; None where there is none or null."""
    value: Any = row.values.get(key)
    if isinstance(value, list):
        value = value[0] if value else None
    return None if value is None else Row(row.where, {key: value}).text(key)


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")
