"""An account of a line of a log: each field that holds text is read, known as no text, or named.

Forms of lines and names of fields are the table `forms.toml`.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from spsbench.tables import read_table
from spsbench.untrusted import FieldError, cut, parse_json


class Form(NamedTuple):
    """A form of a line; `forms.toml` says what its paths mean."""

    name: str
    marks: tuple[str, ...]
    request: tuple[str, ...] = ()
    answer: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()


TABLE = read_table(__file__, "forms.toml")
FORMS = tuple(
    Form(row.pop("name"), **{field: tuple(paths.split()) for field, paths in row.items()})
    for row in TABLE["forms"]
)
CONTAINERS: Mapping[str, list[str]] = {
    path: broken.split() for path, broken in TABLE["containers"].items()
}
ROLES: Mapping[str, str] = {
    word: role for role, words in TABLE["roles"].items() for word in words.split()
}
names = SimpleNamespace(
    **{meaning: tuple(words.split()) for meaning, words in TABLE["names"].items()}
)
FEWEST_IDS = 8  # integers of a list that may be token ids
START = 400  # characters that distinguish a text from a name, a date or a number
MOST_UNREAD = 16  # fields of a line that are named
MOST_COMPARED = 500  # texts of a line that are looked up in those that were read
NOT_TEXT = frozenset(names.not_text)


def is_known(key: str) -> bool:
    """Return whether the last part of a name is a field without text."""
    return key.rpartition(".")[2].replace("_", "").replace("-", "").lower() in NOT_TEXT


def unpack_json(value: object) -> object:
    """Return what a text holds as JSON if that is messages or an object of an API; else `value`."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    if not any(f'"{name}"' in value for name in names.in_json):
        return value
    try:
        parsed = parse_json(value.encode(errors="surrogatepass"), strict=False)
    except FieldError:
        return value
    first = parsed[0] if isinstance(parsed, list) and parsed else parsed
    return parsed if isinstance(first, dict) and first.keys() & set(names.in_json) else value


def holds_text(value: object) -> bool:
    """Return whether a text has two words or a letter beyond ASCII, or a list many integers."""
    if isinstance(value, list):
        return len(value) >= FEWEST_IDS and all(type(item) is int for item in value)
    if not isinstance(value, str):
        return False
    start = value[:START]
    words = sum(any(map(str.isalpha, word)) for word in start.split())
    return words > 1 or any(not letter.isascii() and letter.isalpha() for letter in start)


def step(value: object, key: str) -> Any:
    """Return the value of a key of an object, or at a place of a list; None without one."""
    if isinstance(value, dict):
        return value.get(key)
    places = key.isdecimal() and isinstance(value, list) and int(key) < len(value)
    return value[int(key)] if places else None  # type: ignore[index]


def value_at(value: object, path: str) -> Any:
    """Return what is at a path: keys of objects and places of lists, separated by dots; or None."""
    for key in path.split("."):
        value = step(value, key)
    return value


class Account:
    """The fields of an `entry`, the object of a line, that were read.

    A text that holds JSON of an API is replaced in it by what it holds. `texts` are those that were
    read; `others` are parts of a request or an answer that are no text, as images, in words.
    """

    def __init__(self, entry: dict[str, Any]) -> None:
        self.entry = entry
        self.texts: list[str] = []
        self.others: dict[str, None] = {}
        self._read: set[tuple[int, str]] = set()  # object and field
        self._whole: set[tuple[int, str]] = set()  # the same, of fields read with all below them
        self._bodies: dict[int, object] = {}  # objects below the line's with a field that was read
        self._compared = 0

    def get(
        self, holder: dict[str, Any], *fields: str, whole: bool = False, api: bool = False
    ) -> Any:
        """Return the first of the fields that is a text, list or object, not empty; else None.

        It is marked as read, and a text is added to `texts`; with `whole` all below it is marked
        too. With `api`, JSON of an API in a text replaces it in `holder`, and is returned.
        """
        for name in fields:
            value = holder.get(name)
            if not isinstance(value, str | list | dict) or not value:
                continue
            if api:
                value = holder[name] = unpack_json(value)
            (self._whole if whole else self._read).add((id(holder), name))
            if holder is not self.entry:
                self._bodies[id(holder)] = holder
            if isinstance(value, str):
                self.texts.append(value)
            return value
        return None

    def at(self, paths: Sequence[str]) -> Any:
        """Return what is at the first path with a value, and mark it as read; None: none has one.

        `paths` are as `value_at` takes them; empty: the entry itself. JSON of an API in a text on
        the way is replaced by what it holds, and a text is added to `texts`.
        """
        if not paths:
            return self.entry
        path = next((path for path in paths if value_at(self.entry, path)), None)
        if path is None:
            return None
        value: Any = self.entry
        for key in path.split("."):
            holder, value = value, step(value, key)
            if isinstance(holder, dict):
                self._read.add((id(holder), key))
                value = holder[key] = unpack_json(value)
        if isinstance(value, str):
            self.texts.append(value)
        return value

    def unread(self) -> tuple[list[str], list[str]]:
        """Return the paths of text that was not read: outside bodies; and inside, after `others`.

        A body is an object of a request or an answer. A text that is part of one that was read says
        nothing new. At most `MOST_UNREAD` paths are looked for.
        """
        fields: dict[str, bool] = {}
        for path, in_body in self._unread(self.entry, "", False, False):
            fields[path] = fields.get(path, False) or in_body
            if len(fields) >= MOST_UNREAD:
                break
        outside = [path for path, in_body in fields.items() if not in_body]
        return outside, [*self.others, *(path for path, in_body in fields.items() if in_body)]

    def _unread(
        self, value: Any, path: str, in_body: bool, is_read: bool
    ) -> Iterator[tuple[str, bool]]:
        """Yield (path, in a body) of each unread text in `value`; `is_read`: its own field was."""
        if isinstance(value, dict):
            in_body = in_body or id(value) in self._bodies
            for key, item in value.items():
                field = id(value), key
                if field not in self._whole and (field in self._read or not is_known(key)):
                    below = f"{path}.{cut(key)}" if path else cut(key)
                    yield from self._unread(item, below, in_body, field in self._read)
        elif isinstance(value, list) and not holds_text(value):
            for item in value:
                yield from self._unread(item, path, in_body, is_read)
        elif not is_read and holds_text(value):
            if (packed := unpack_json(value)) is not value:
                yield from self._unread(packed, path, in_body, False)
            elif not self._repeats(value):
                yield cut(path), in_body

    def _repeats(self, value: Any) -> bool:
        """Return whether a value is part of text that was read; no after `MOST_COMPARED` calls."""
        self._compared += 1
        words = value.strip() if isinstance(value, str) else ""
        return (
            bool(words)
            and self._compared <= MOST_COMPARED
            and any(words in text for text in self.texts)
        )
