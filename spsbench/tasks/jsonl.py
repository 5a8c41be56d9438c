"""The user's prompts, from a file; ROUGE-2 scores those with references.

A row is `{"id"?, "prompt" or "text", "reference"?, "group" or "category"?, "json_schema"?,
"system"?}`, a chat `{"messages"}` (system?, user, assistant?), or a question of Spec-Bench and
MT-Bench, `{"question_id", "category", "turns", "reference"?}`; a line that is text, or a JSON
string, is a prompt itself. A line for the user names all other fields. A chat model gets all turns,
each after the answers to the turns before; a base model gets the first turn. The texts of a row
follow its `json_schema`, and a chat begins with its `system`, each in place of the one of the
command; a line for the user counts those that plain prompts do without.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from spsbench.errors import DataError
from spsbench.settings.constraint import check_grammar, read_schema
from spsbench.settings.task import Fits, Sample
from spsbench.store.run_folder import TURN
from spsbench.tasks import rouge
from spsbench.tasks.base import PromptTask
from spsbench.tasks.reader import FileRow, drop_repeated, read_rows
from spsbench.untrusted import cut

FIELDS = "id question_id reference group category json_schema system"
"""Fields that a row may have next to its prompt."""
FIELD_OF = {"system": "system", "developer": "system", "user": "prompt", "assistant": "reference"}
"""Role of a message -> the field that says the same of a row."""
KEYS = {"role", "content"}  # what is read of a message
MAX_NAMED = 8  # fields of a line

log = logging.getLogger(__name__)


class Jsonl(PromptTask):
    """The prompts of a file, as a task."""

    name = "jsonl"
    data = "path"
    quality = rouge.QUALITY

    def __init__(self, path: str = "", max_new_tokens: int = 128, stop: str = "") -> None:
        r"""Read the prompts; ValueError: no path, or no new tokens. SpsError: an unusable file.

        Args:
            path: JSONL, a JSON list, CSV or text (perhaps gzipped), parquet, or a folder that
                `datasets` loads.
            max_new_tokens: maximum number of tokens to generate.
            stop: texts that end a completion, split at `|`; `\n` and `\t` are read as in Python.
        """
        if not path:
            raise ValueError("no path: expected jsonl:path=FILE")
        stop = stop.replace("\\n", "\n").replace("\\t", "\t")
        self.stop = tuple(text for text in stop.split("|") if text)
        self._path = Path(path).expanduser()
        self._later: dict[str, list[str]] = {}  # turns after the first, by sample
        self._is_named = False  # whether a line has counted the system messages that are not used
        self._unread: Counter[str] = Counter()  # prompts by a field next to them that is not read
        with closing(read_rows(self._path, "prompt")) as numbered:
            samples, repeated = drop_repeated(
                (row.where, self._read(row, number)) for number, row in enumerate(numbered, 1)
            )
        if not samples:
            raise DataError(f"no prompts ({self._path}): expected one a line. Check the path")
        if self._unread:
            named = self._unread.most_common(MAX_NAMED)
            more = f" and {len(self._unread) - MAX_NAMED} more" * (len(self._unread) > MAX_NAMED)
            listed = ", ".join(f"{cut(name)} ({count})" for name, count in named)
            log.info(f"note: fields of {self._path} that are not read: {listed}{more}")
        scored = any(sample.reference is not None for sample in samples)
        self.metrics = rouge.METRICS if scored else ()
        self.constrained = any(sample.json_schema for sample in samples)
        self.hold(self._described(samples, repeated), samples, max_new_tokens)

    def instruct(self) -> Self:
        """Return a copy that asks each turn of a row as a message, and keeps the stop strings."""
        task = super().instruct()
        task.stop = self.stop
        task._samples = [turn for sample in self._samples for turn in self._turns(sample)]
        task._set_version()
        return task

    def samples(self, fits: Fits) -> Iterator[Sample]:
        """Yield all samples in order; DataError: one does not fit the context.

        Before the first, a line, logged once, counts system messages that plain prompts leave out.
        """
        unused = 0 if self.is_asked else sum(bool(sample.system) for sample in self._samples)
        if unused and not self._is_named:
            self._is_named = True
            log.info(
                f"note: {unused} prompts of {self._path} have a system message, which is not used "
                "here: chats of sps bench and sps plan begin with it"
            )
        yield from super().samples(fits)

    def parts(self) -> Iterable[str]:
        """Return ids, prompts and schemas, and the system messages of a chat."""
        whole = ((s.id, s.prompt, s.json_schema, s.system * self.is_asked) for s in self._samples)
        return (text for name, *texts in whole for text in (name, *filter(None, texts)))

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """Return ROUGE-2 F in 0..100 against the reference; empty without a reference."""
        return (
            {} if sample.reference is None else rouge.evaluate_rouge(completion, sample.reference)
        )

    def _read(self, row: FileRow, number: int) -> Sample:
        """Return a row's sample; keep later turns in `_later`, count unread fields in `_unread`."""
        row = _unfold(row)
        sample, key = _sample(row, number), _text_key(row)
        fields = {*FIELDS.split(), key}
        others = ((name, x) for name, x in row.values.items() if name not in fields)
        self._unread.update(name for name, value in others if value not in (None, "", [], {}))
        if key == "turns":
            self._later[sample.id] = _turn_texts(row)[1:]
        return sample

    def _turns(self, first: Sample) -> Iterator[Sample]:
        yield first
        before = first.id
        for number, text in enumerate(self._later.get(first.id, ()), start=2):
            name = f"{first.id}{TURN}{number}"
            yield replace(first, id=name, prompt=text, reference=None, after=before)
            before = name

    def _described(self, samples: list[Sample], repeated: int) -> str:
        """Return a line that counts prompts, references (wordless, too) and repeated lines."""
        references = [s.reference for s in samples if s.reference is not None]
        parts = [f"{self._path}: {len(samples):,} prompts", f"{len(references):,} references"]
        if repeated:
            parts.append(f"{repeated:,} repeated lines left out")
        if wordless := sum(not rouge.has_words(reference) for reference in references):
            parts.append(f"{wordless:,} references without Latin words, which score 0")
        return ", ".join(parts)


def _sample(row: FileRow, number: int) -> Sample:
    """Return the sample of a row, in any format; without an id it is called `prompt-NUMBER`.

    Keys: `id` or `question_id`, `prompt`, `text` or the first of `turns`, `group` or `category`,
    `reference`, `json_schema`, `system`. DataError: no text, an empty one, or an unusable value.
    """
    key = _text_key(row)
    ids = [id_key for id_key in ("id", "question_id") if id_key in row.values]
    name = row.name(ids[0]) if ids else f"prompt-{number}"
    prompt = _turn_texts(row)[0] if key == "turns" else row.text(key)
    if not prompt:
        raise DataError(f"an empty prompt ({row.where}): expected a text. Give it one")
    group = _optional(row, "group")
    return Sample(
        name,
        prompt,
        reference=_optional(row, "reference"),
        group=_optional(row, "category") if group is None else group,
        json_schema=_schema(row),
        system="" if row.values.get("system") is None else row.text("system"),
    )


def _unfold(row: FileRow) -> FileRow:
    """Return the row with its messages (`messages`, or a list `prompt`) as the fields of a row.

    A list of text parts, as a message's content or as `system`, becomes one text. A row that has
    another text keeps its `messages` as they are. DataError: other messages than system?, user,
    assistant?, or one that has more than role and content, or whose field the row has as well.
    """
    values = {name: _join_parts(x) if name == "system" else x for name, x in row.values.items()}
    key = "prompt" if isinstance(values.get("prompt"), list) else "messages"
    if key not in values or _text_key(row) in values.keys() - {key}:
        return FileRow(row.where, values)
    messages = values.pop(key)
    fields: dict[str, Any] = {}
    for message in messages if isinstance(messages, list) else ():
        is_plain = isinstance(message, dict) and {k for k, x in message.items() if x} <= KEYS
        name = FIELD_OF.get(str(message.get("role"))) if is_plain else None
        if name is None or name in fields or values.get(name) is not None:
            break
        fields[name] = _join_parts(message.get("content"))
    order = [name for name in ("system", "prompt", "reference") if name in fields]
    if "prompt" not in fields or [*fields] != order or len(messages) != len(order):
        raise DataError(
            f"{key!r} ({row.where}): expected role and content of one message of the user, perhaps "
            "a system message before it and an answer after it, each said once. Give several "
            "messages of the user as 'turns'"
        )
    return FileRow(row.where, values | fields)


def _join_parts(value: Any) -> Any:
    """Return a list of text parts as one text; any other value as it is."""
    if isinstance(value, list) and all(isinstance(x, dict) for x in value):
        texts = [part.get("text") for part in value if part.get("type") in ("text", "input_text")]
        if len(texts) == len(value) and all(isinstance(text, str) for text in texts):
            return "".join(texts)
    return value


def _text_key(row: FileRow) -> str:
    return next((key for key in ("prompt", "text", "turns") if key in row.values), "prompt")


def prompts_in(path: Path) -> tuple[str, ...]:
    """Return the prompts of a file, of a conversation its first turn; SpsError: as `Jsonl`."""
    return tuple(sample.prompt for sample in Jsonl(str(path)).samples(lambda sample: True))


def _schema(row: FileRow) -> str:
    """Return `json_schema`, an object or its text, as text; "": none; SpsError: it is unusable."""
    if (value := row.values.get("json_schema")) is None:
        return ""
    where = f"'json_schema' ({row.where})"
    if not isinstance(value, dict | str) or (value and isinstance(value, str) and value[0] != "{"):
        raise DataError(f"{where}: expected a JSON schema. Correct the line")
    schema = read_schema(value, where)
    check_grammar("json_schema", schema, where)
    return schema


def _turn_texts(row: FileRow) -> list[str]:
    turns = row.values["turns"]
    if not isinstance(turns, list) or not turns or not all(isinstance(x, str) for x in turns):
        raise DataError(f"'turns' ({row.where}): expected a list of texts. Correct the line")
    return turns


def _optional(row: FileRow, key: str) -> str | None:
    """Return the text under `key`, the first of a list; None where there is none or null."""
    value: Any = row.values.get(key)
    if isinstance(value, list):
        value = value[0] if value else None
    return None if value is None else FileRow(row.where, {key: value}).text(key)
