"""JSON files that were written by others: capped, and always an object."""

import errno
import json
from pathlib import Path
from typing import Any

from spsbench.errors import DataError, MissingError, PermissionDeniedError
from spsbench.hardware.files import read_file


def read_object(path: Path, limit: int) -> dict[str, Any]:
    """The JSON object in `path`, which may have `limit` bytes at most.

    Raises:
        MissingError: no such file.
        PermissionDeniedError: it may not be read.
        DataError: too large, not UTF-8, not JSON, nested too deeply, or not an object.
    """
    try:
        value = json.loads(read_file(path, limit))
    except PermissionError as error:
        raise PermissionDeniedError.unreadable(path) from error
    except OSError as error:
        if error.errno in (errno.EFBIG, errno.EINVAL):
            raise DataError(
                f"{path.name} cannot be read ({path}: {error.strerror}): expected at most {limit} "
                "bytes. Check that the folder holds a model"
            ) from error
        raise MissingError(
            f"no {path.name} ({path.parent}): expected a file. Check that the folder holds a model"
        ) from error
    except RecursionError as error:
        raise DataError(
            f"{path.name} is nested too deeply ({path}): expected a flat object. "
            "Fetch the model again"
        ) from error
    except ValueError as error:
        raise DataError(
            f"{path.name} is not JSON ({path}): {error}. Fetch the model again"
        ) from error
    if not isinstance(value, dict):
        raise DataError(
            f"{path.name} holds a {type(value).__name__} ({path}): expected a JSON object. "
            "Fetch the model again"
        )
    return value
