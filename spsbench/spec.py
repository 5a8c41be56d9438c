"""Specs: plug-ins as users name them: `ngram:n=3,min_n=1`, or in a file: `./mine.py:Repeat:n=3`."""

from dataclasses import dataclass

Scalar = str | int | float | bool

K_MAX = 64
"""The largest K: a drafter makes room for so many tokens before it knows how many it drafts."""

ALONE = {"self": "skip"}
"""Plug-in -> the argument that a first value without a key sets: `self:8-11`."""

PROMPT_FILES = (".jsonl", ".json", ".txt", ".csv", ".tsv", ".gz", ".parquet")
"""Ends of names of files with prompts."""


@dataclass(frozen=True, slots=True)
class Spec:
    """A plug-in by name with its arguments.

    `source` is the hash of the file of a plug-in that is named by its path, once it has been read:
    another source is another plug-in.
    """

    name: str
    args: tuple[tuple[str, Scalar], ...] = ()
    source: str = ""

    @classmethod
    def parse(cls, text: str) -> "Spec":
        """Parse `name[:key=value,...]`; values are read as int, float, true/false, else text.

        A name whose first part ends in `.py` is a path, and its second part a class. The key of a
        first value may be left out where `ALONE` knows it. Raises ValueError for what is no text,
        an empty name, key or value, a path without a class, no arguments after `:`, or a key given
        twice.
        """
        if not isinstance(text, str):
            raise ValueError(f"is {text!r}: expected NAME or NAME:key=value,... as text")
        name, colon, arguments = text.partition(":")
        if name.endswith(".py"):
            inside, colon, arguments = arguments.partition(":")
            if not inside.isidentifier():
                raise ValueError(f"{text!r}: expected FILE.py:CLASS or FILE.py:CLASS:key=value,...")
            name = f"{name}:{inside}"
        if not name or (colon and not arguments):
            raise ValueError(f"{text!r}: expected NAME or NAME:key=value,...")
        args: dict[str, Scalar] = {}
        for pair in arguments.split(",") if arguments else ():
            key, equals, value = pair.partition("=")
            if not equals and not args and name in ALONE:
                key, equals, value = ALONE[name], "=", pair
            if not key or not equals or not value:
                raise ValueError(f"{text!r}: expected key=value, got {pair!r}")
            if key in args:
                raise ValueError(f"{text!r}: {key} is given twice")
            args[key] = _scalar(value)
        return cls(name, tuple(args.items()))

    @classmethod
    def of_task(cls, text: str) -> "Spec":
        """Parse a task, or a file of prompts: `FILE[:key=value,...]` is `jsonl:path=FILE,...`.

        A file's name ends as one of `PROMPT_FILES`, or has a `/` and does not end in `.py`. Raises
        ValueError as `parse` does.
        """
        path, _, arguments = text.partition(":") if isinstance(text, str) else ("", "", "")
        if not path.endswith(PROMPT_FILES) and ("/" not in path or path.endswith(".py")):
            return cls.parse(text)
        args = cls.parse(f"jsonl:{arguments}").args if arguments else ()
        return cls("jsonl", (("path", path), *args))

    @property
    def path(self) -> str | None:
        """Return the `FILE.py` of a plug-in that is named `FILE.py:CLASS`; None for others."""
        file, colon, _ = self.name.partition(":")
        return file if colon and file.endswith(".py") else None

    @property
    def short(self) -> str:
        """Return the name after its last `/`, with `.` for `:`, so that it can name a folder."""
        return self.name.rpartition("/")[2].replace(":", ".")

    def __str__(self) -> str:
        pairs = ",".join(f"{key}={_write_value(value)}" for key, value in self.args)
        return f"{self.name}:{pairs}" if pairs else self.name


def _write_value(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _scalar(text: str) -> Scalar:
    """Return a bool, an integer or a float if the text is one, else the text."""
    if text in ("true", "false"):
        return text == "true"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
