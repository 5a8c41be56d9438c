r"""Other people's text in our files: each format has characters that would do something.

In every format what moves a cursor, hides, or turns text round is shown as an escape (`\x1b`).
"""

import unicodedata

HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Controls, formats (bidi, zero width), surrogates, line and paragraph separators."""

FORMULA = ("=", "+", "-", "@")
MARKDOWN = frozenset("\\`*_{}[]<>|#~&!")
LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
}


def visible(text: str) -> str:
    r"""One line in which every character can be seen; the others are escaped, also \n and \t."""
    return "".join(_escape(c) if unicodedata.category(c) in HIDDEN else c for c in text)


def csv_text(text: str) -> str:
    """Text that no spreadsheet takes for a formula: a leading sign gets an apostrophe.

    For text only; a negative number is a number.
    """
    shown = visible(text)
    return f"'{shown}" if shown.lstrip().startswith(FORMULA) else shown


def markdown_text(text: str) -> str:
    """Text that is neither markup, HTML nor the end of a table's cell."""
    return "".join(f"\\{c}" if c in MARKDOWN else c for c in visible(text))


def latex_text(text: str) -> str:
    """Text without LaTeX's special characters."""
    return "".join(LATEX.get(c, c) for c in visible(text))


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
