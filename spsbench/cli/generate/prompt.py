"""Where the prompt comes from: the argument, a file or stdin. Text is taken as it is."""

import sys
from pathlib import Path
from typing import BinaryIO

from spsbench.cli.safe import is_terminal
from spsbench.errors import DataError, MissingError, PermissionDeniedError, UsageError

LIMIT = 10_000_000  # bytes; far more than any context holds
WAYS = "PROMPT, --prompt-file FILE or text on stdin"


def read_prompt(argument: str | None, file: str | None) -> str | None:
    """The prompt; None when nothing was given and stdin is a terminal.

    Raises:
        SpsError: two sources, nothing in them, or something that is no text.
    """
    text = taken(argument, file)
    if text == "":  # more often a variable that is not set than a wish for just any text
        raise UsageError(f"the prompt is empty: expected {WAYS}. Give at least one character")
    return text


def taken(argument: str | None, file: str | None) -> str | None:
    """What the one source has; None when none was named and stdin is a terminal."""
    if argument is not None and file is not None:
        first = "PROMPT '-'" if argument == "-" else "PROMPT"
        raise UsageError(f"{first} and --prompt-file {file}: expected one prompt. Leave out one")
    if file is not None and file != "-":
        return read_file(file)
    if argument is not None and argument != "-":
        return checked_argument(argument)

    asked_for_stdin = "-" in (argument, file)
    if sys.stdin is None or sys.stdin.closed:
        raise DataError(f"stdin is closed: expected a prompt. Give {WAYS}")
    if is_terminal(sys.stdin) and not asked_for_stdin:
        return None
    text = decoded(read_all(sys.stdin.buffer, "stdin"), "stdin")
    if not text and not asked_for_stdin:
        raise UsageError(f"no prompt: expected {WAYS}. See sps generate --help")
    return text


def read_file(name: str) -> str:
    """The text of a prompt file."""
    path = Path(name).expanduser()
    try:
        with path.open("rb") as file:
            return decoded(read_all(file, name), name)
    except FileNotFoundError as error:
        raise MissingError(f"--prompt-file {name}: expected a file, there is none") from error
    except (IsADirectoryError, NotADirectoryError) as error:
        raise MissingError(f"--prompt-file {name}: expected a file, not a folder") from error
    except PermissionError as error:
        raise PermissionDeniedError(f"--prompt-file {name}: may not be read") from error
    except (OSError, ValueError) as error:
        raise MissingError(f"--prompt-file {name}: cannot be read ({error})") from error


def read_all(file: BinaryIO, where: str) -> bytes:
    """All bytes, but never more than the limit from an endless source."""
    content = file.read(LIMIT + 1)
    if len(content) > LIMIT:
        raise DataError(f"the prompt ({where}) is longer than {LIMIT:,} bytes: expected less")
    return content


def decoded(content: bytes, where: str) -> str:
    """UTF-8 or nothing."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"the prompt ({where}) is no UTF-8 at byte {error.start}: expected text. Convert it"
        ) from error


def checked_argument(argument: str) -> str:
    """Bytes of the command line that are no text arrive as surrogates."""
    try:
        argument.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"PROMPT is no UTF-8 at character {error.start}: expected text. Convert it"
        ) from error
    return argument
