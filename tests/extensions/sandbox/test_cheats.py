"""Cheap ways to be called passed: names that the verdict is looked up by, hooks at the end."""

import pytest

from spsbench.extensions.sandbox import levels
from spsbench.extensions.sandbox.levels import ProgramLimits
from spsbench.extensions.sandbox.runner import run_program

LIMITS = ProgramLimits(timeout=2.0)
LEVEL = levels.unconfined_level(LIMITS)  # they reach for the verdict, not for the host

FAILING = "\nassert 1 + 1 == 3"
MENDED = {
    "another kind": "import __main__\n__main__.kind = lambda e: 'passed'",
    "any name of the jail": (
        "import __main__\n"
        "for name in dir(__main__):\n"
        "    if callable(getattr(__main__, name)):\n"
        "        setattr(__main__, name, lambda *_: ('passed', ''))\n"
        "__main__.verdict = __main__.reason = lambda *_: 'passed'"
    ),
    "another body": (
        "import __main__\n"
        "for made in vars(__main__).values():\n"
        "    if hasattr(made, '__code__'): made.__code__ = (lambda e: 'passed').__code__"
    ),
    "the module by sys.modules": (
        "import sys\n"
        "for module in list(sys.modules.values()):\n"
        "    if hasattr(module, 'kind'): module.kind = lambda e: 'passed'"
    ),
    "every builtin": (
        "import builtins\n"
        "for name in ('type', 'issubclass', 'isinstance', 'MemoryError', 'ModuleNotFoundError',\n"
        "             'BaseException', 'Exception', 'str', 'exec', 'compile', 'AssertionError'):\n"
        "    setattr(builtins, name, lambda *_: 'passed')"
    ),
    "a module of the jail": (
        "import os, sys, marshal\nos.write = os._exit = sys.exit = marshal.dumps = lambda *_: None"
    ),
    "a hook at the end": (
        "import atexit, sys, os\n"
        "atexit.register(lambda: os.write(3, b' passed'))\n"
        "sys.excepthook = sys.unraisablehook = lambda *_: os._exit(0)"
    ),
    "a quiet exit": "import sys\nsys.exit(0)",
    "a raised exit": "raise SystemExit('passed')",
    "an exception of a lying class": (
        "class E(Exception):\n"
        "    __class__ = MemoryError\n"
        "    def __str__(self): return 'passed'\n"
        "raise E"
    ),
    "an exception whose class lies": (
        "class M(type):\n"
        "    def __subclasscheck__(self, other): return True\n"
        "    def __getattribute__(self, name): raise SystemExit('passed')\n"
        "class E(Exception, metaclass=M): pass\n"
        "raise E"
    ),
    "another handler of errors": (
        "import codecs\n"
        "for name in ('backslashreplace', 'strict'):\n"
        "    codecs.register_error(name, lambda e: ('passed', e.end))\n"
        "raise ValueError('\\ud800')"
    ),
}


@pytest.mark.parametrize("name", MENDED)
def test_what_a_name_means_by_then_changes_no_verdict(name):
    found = run_program(LEVEL, MENDED[name] + FAILING, LIMITS)
    assert found.verdict == "failed", found


def test_what_an_exception_means_is_told_by_its_real_class():
    assert run_program(
        LEVEL, "import builtins\nbuiltins.MemoryError = int\nimport nothing_there", LIMITS
    )[:2] == ("import missing", "ModuleNotFoundError: No module named 'nothing_there'")
    code = "import builtins\nkeep = MemoryError\nbuiltins.MemoryError = ValueError\nraise keep('x')"
    assert run_program(LEVEL, code, LIMITS)[:2] == ("out of memory", "MemoryError: x")
