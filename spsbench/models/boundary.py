"""The border to transformers: what it prints is kept away, what it raises becomes one line."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from transformers.utils import logging

from spsbench.errors import DataError, OutOfMemoryError, SpsError, first_line, is_out_of_memory


@contextmanager
def silent() -> Iterator[None]:
    """Without transformers' log lines, warnings and progress bars; all as before afterwards."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def translated(what: str, where: Path | str) -> Iterator[None]:
    """Turn any error inside into an `SpsError` with one line.

    Raises:
        OutOfMemoryError: memory of the machine or of a device ran out.
        DataError: anything else, from whichever of the libraries below.
    """
    try:
        yield
    except SpsError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError(
                f"not enough memory ({where}): {first_line(error)}. "
                "Choose a smaller model or --dtype bfloat16"
            ) from error
        raise DataError(
            f"{what} cannot be used ({where}): {first_line(error)}. "
            "Check the folder, or fetch the model again"
        ) from error
