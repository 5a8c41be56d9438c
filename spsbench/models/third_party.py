"""Calls into transformers: its output is silenced, and its errors become one line."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers.utils import logging

from spsbench.checkpoints.config import CONFIG_LIMIT, read_config, read_object
from spsbench.errors import (
    DataError,
    OutOfMemoryError,
    SpsError,
    first_line,
    is_out_of_memory,
    is_panic,
)

CONFIGS = ("config.json", "tokenizer_config.json", "generation_config.json")
LEFTOVERS = ("return_dict", "attn_implementation", "_attn_implementation", "torch_dtype", "dtype")
"""Keys left in config.json by trainings; options say how a model runs, which computes the same."""


def open_config(folder: Path, *, trust_remote_code: bool = False) -> Any:
    """Return transformers' config of a folder without the keys `LEFTOVERS`, but for a valid dtype.

    With `trust_remote_code`, or a `model_type` that transformers lacks, all keys are kept.
    """
    import torch
    from transformers import CONFIG_MAPPING, AutoConfig

    values = read_config(folder)
    left = [name for name in LEFTOVERS if values.get(name) is not None]
    left = [name for name in left if "dtype" not in name or not hasattr(torch, str(values[name]))]
    if trust_remote_code or not left or values.get("model_type") not in CONFIG_MAPPING:
        return AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code
        )
    kept = {name: value for name, value in values.items() if name not in left}
    config = CONFIG_MAPPING[values["model_type"]].from_dict(kept)
    config.name_or_path = str(folder)
    return config


@contextmanager
def silence() -> Iterator[None]:
    """Silence transformers' logs and progress bars, and Python's warnings, in a `with` block."""
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
def without_panics() -> Iterator[None]:
    """Hide stderr of a block that ends in a panic of a Rust library; else it follows at the end.

    For calls of milliseconds: the output of other threads waits for them. A closed stderr stays so.
    """
    sys.stderr.flush()
    try:
        stderr = os.dup(2)
    except OSError:  # closed
        yield
        return
    buffer = os.memfd_create("stderr")
    os.dup2(buffer, 2)
    panicked = False
    try:
        yield
    except BaseException as error:
        panicked = is_panic(error)
        raise
    finally:
        os.dup2(stderr, 2)
        if not panicked and (size := os.fstat(buffer).st_size):
            os.write(2, os.pread(buffer, size, 0))
        os.close(stderr)
        os.close(buffer)


@contextmanager
def translate_errors(what: str, where: Path | str) -> Iterator[None]:
    """Turn errors inside into OutOfMemoryError or DataError, in one line; SpsErrors pass as such.

    Interrupts and exits pass too, panics of Rust do not. `what` at `where` is what cannot be used.
    """
    try:
        yield
    except SpsError:
        raise
    except BaseException as error:
        if is_out_of_memory(error):
            raise OutOfMemoryError(
                f"not enough memory ({where}): {first_line(error)}. "
                "Choose a smaller model or `dtype` bfloat16"
            ) from error
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise DataError(
            f"{what} cannot be used ({where}): {_reason(error, Path(where))}. "
            "Check the folder, or fetch the model again"
        ) from error


def _reason(error: BaseException, folder: Path) -> str:
    """Return an error's first line; of a KeyError, where a config in `folder` has the key."""
    if not isinstance(error, KeyError) or not error.args:
        return first_line(error)
    key = error.args[0]
    for name in CONFIGS:
        try:
            places = list(_places(read_object(folder / name, CONFIG_LIMIT), key))
        except SpsError:
            continue
        if places:
            return f"{places[0]} is {key!r} in {name}: expected one that transformers knows"
    return f"expected {key!r} in its files, and there is none"


def _places(values: Any, target: Any, at: str = "") -> Iterator[str]:
    """Yield the paths, as `a.b` below `at`, at which nested objects have `target` as a value."""
    for key, value in values.items() if isinstance(values, dict) else ():
        here = f"{at}.{key}" if at else str(key)
        if value == target:
            yield here
        yield from _places(value, target, here)
