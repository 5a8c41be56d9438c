"""Errors of a command: each becomes one line on stderr and an exit code."""

import errno
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable

import typer

from spsbench.cli.terminal import one_line, with_flags
from spsbench.errors import (
    CannotCreateError,
    Exit,
    SpsError,
    WriteError,
    first_line,
    is_out_of_memory,
    is_panic,
)
from spsbench.hardware.ranks import ranks

LONGEST = 80  # characters of a name that a line shows
SIGPIPE = 141  # as the shell reports a program whose reader has gone


def exit_code(command: Callable[[], object]) -> int:
    """Run `command`, report its failure on stderr, and return the exit code; nothing is raised.

    The code is the command's, OK for none, INTERNAL for no int; 141 where the reader of its output
    has gone; INTERRUPTED for Ctrl-C; else the error's. Output that cannot be written is discarded.
    """
    code: object = Exit.OK
    try:
        code = command() or Exit.OK
    except SystemExit as end:  # typer and rich end so when a pipe breaks
        code = SIGPIPE if isinstance(end.__context__, BrokenPipeError) else end.code
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except BrokenPipeError:
        code = SIGPIPE
    except BaseException as error:  # a panic in Rust is no Exception
        code = report_error(error)
    if code in (SIGPIPE, Exit.CANNOT_WRITE):
        abandon_output()
    elif code == Exit.INTERRUPTED:
        print("interrupted", file=sys.stderr)
    return int(code) if isinstance(code, int) else Exit.INTERNAL


def report_error(error: BaseException) -> int:
    """Print the line of `error` on stderr and return its exit code.

    A group without a command prints its help on stdout instead. A bug's traceback is saved, or any
    printed with `--debug`; torchrun gets the line of a rank.
    """
    if type(error).__name__ == "NoArgsIsHelpError" and isinstance(error, typer.TyperException):
        print(error.format_message())
        return error.exit_code
    line, code = describe_error(error)
    line = with_flags(line)
    if debugging():
        traceback.print_exception(error)
    elif code == Exit.INTERNAL:
        line += save_traceback(error)
    if ranks().size > 1:
        write_error_file(line)
    print(f"error: {one_line(line)}", file=sys.stderr)
    return code


def write_error_file(line: str) -> None:
    """Write this rank's error as JSON to the file that torchrun reads, if there is one."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        extra = {"timestamp": str(int(time.time()))}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"message": {"message": line, "extraInfo": extra}}, file)


def describe_error(error: BaseException) -> tuple[str, int]:
    """Return the line for the user and the exit code of an error.

    An SpsError has its own, a usage error a hint to --help. Lines, with codes of their own, are
    made for a name too long, no access, memory that ran out, a panic in Rust and numbers that are
    not finite. The code of any other error is INTERNAL.
    """
    if (long := too_long(error)) is not None:
        name = str(long.filename)
        shortened = name if len(name) <= LONGEST else f"{name[:LONGEST]}..."
        line = f"a name too long ({shortened}): expected one that a file can have. Check the path"
        if isinstance(error, CannotCreateError | WriteError):
            return line, error.code
        return line, Exit.MISSING
    if isinstance(error, SpsError):
        return str(error), error.code
    if isinstance(error, typer.TyperException):
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "sps"
        text = error.format_message().rstrip(".").replace(": Value error, ", ": ")
        end = "" if text.endswith("?") else "."
        return f"{text}{end} See {where} --help", error.exit_code
    if isinstance(error, PermissionError) and error.filename is not None:
        where = f"{str(error.filename)[:LONGEST]}: {error.strerror}"
        line = f"no access ({where}): expected permission to search and read. Ask its owner"
        return line, Exit.PERMISSION
    if is_out_of_memory(error):
        todo = "Try fewer tokens, --dtype bfloat16 or a smaller model"
        return f"out of memory ({first_line(error)}). {todo}", Exit.MEMORY
    if is_panic(error):
        todo = "Check tokenizer.json, or fetch the model again"
        return f"a library failed ({first_line(error)}): expected to go on. {todo}", Exit.DATA
    loop = sys.modules.get("spsbench.loop.decode")  # which other errors do not import
    if loop is not None and isinstance(error, loop.NonFiniteError):
        todo = "Check the weights, or try --dtype float32"
        return f"{error}: expected finite numbers. {todo}", Exit.FAILED_SAMPLES
    return f"internal: {type(error).__name__}: {first_line(error)}", Exit.INTERNAL


def too_long(error: BaseException | None) -> OSError | None:
    """Return the OSError about a too long file name in the chain of causes of `error`, or None."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return error
        error = error.__cause__ or error.__context__
    return None


def debugging() -> bool:
    """Return whether --debug or SPS_DEBUG asks for a traceback."""
    return "--debug" in sys.argv[1:] or os.environ.get("SPS_DEBUG", "0") not in ("", "0")


def save_traceback(error: BaseException) -> str:
    """Save the traceback in a temporary file; return the end of a line: its name, or `--debug`."""
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="sps-", suffix=".log", delete=False, encoding="utf-8", errors="replace"
        ) as log:
            traceback.print_exception(error, file=log)
    except OSError:
        return ". Run it again with --debug for the traceback"
    return f". The traceback is in {log.name}"


def abandon_output() -> None:
    """Flush stdout and stderr; discard the output of one that is closed or full."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
