"""One line of a JSONL file: a JSON object, read strictly."""

import json
import math
from typing import Any, NoReturn

from spsbench.errors import DataError


def parse(line: bytes, where: str) -> dict[str, Any]:
    """The object on a line.

    Args:
        line: its bytes, the newline included if it has one.
        where: file and line, for messages.

    Raises:
        DataError: not UTF-8, not JSON, cut off, nested too deeply, with a number that is no number
            or a key that is there twice, or no object; says the column where it is known.
    """
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"bytes that are not UTF-8 ({where}:{error.start + 1}): expected UTF-8. "
            "Convert the file, for instance with iconv"
        ) from error
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite
        )
    except RecursionError:
        raise DataError(
            f"JSON nested too deeply ({where}): expected flat objects. Correct the line"
        ) from None  # a thousand frames help nobody
    except json.JSONDecodeError as error:
        torn = "" if line.endswith(b"\n") else "; the file may have been cut off here"
        raise DataError(
            f"no JSON ({where}:{error.colno}, {error.msg}{torn}): expected one object a line. "
            "Correct the line"
        ) from error
    except ValueError as error:
        raise DataError(
            f"{error} ({where}): expected plain, finite, unambiguous values. Correct the line"
        ) from error
    if not isinstance(value, dict):
        raise DataError(
            f"JSON {type(value).__name__} ({where}): expected one object a line. Correct the line"
        )
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} is there twice")
    return values


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"the number {constant}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"the number {text[:20]}, which is too large")
    return value
