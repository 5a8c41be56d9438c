"""No test asserts that something took less than a number of seconds: another machine is slower.

What such a test would be for is counted (modules, passes, requests, bytes) or measured in
`benchmarks/`. Lower bounds after a sleep, fake clocks and the conditions of waits are fine; a wait
has at least a minute.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CLOCKS = {"perf_counter", "monotonic", "process_time", "thread_time", "time", "times"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS} | {"lap"}  # of our own stop watch
PROCESSOR = {"ru_utime", "ru_stime"}  # of `getrusage`; its memory is no time
ELAPSED = {"seconds", "elapsed", "ttft", "duration", "took"}
WORDS = re.compile("|".join([r"\btimes?\(\)", *CLOCKS - {"time", "times"}, *PROCESSOR, *ELAPSED]))
WAITS = {"wait": 0, "join": 0, "communicate": 1, "poll": 0, "result": 0, "run": None}
LEAST = 60  # seconds that a wait has


def is_clock(node: ast.AST, functions: frozenset[str]) -> bool:
    """Return whether `node` reads a clock, or calls a function that does."""
    if isinstance(node, ast.Attribute):
        return node.attr in PROCESSOR
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute):
        return called.attr in CLOCKS and not node.args
    return isinstance(called, ast.Name) and called.id in functions | CLOCKS - {"time", "times"}


def is_elapsed(node: ast.AST) -> bool:
    """Return whether `node` is a field of a record that says how long something took."""
    name: object = None
    if isinstance(node, ast.Attribute):
        name = node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        name = node.slice.value
    return isinstance(name, str) and (name in ELAPSED or name.endswith("_seconds"))


class Times:
    """The expressions of one function that hold a time."""

    def __init__(self, function: ast.AST, functions: frozenset[str]) -> None:
        self.functions = functions
        self.names: set[str] = set()
        assigned = [
            (target.id, node.value)
            for node in ast.walk(function)
            if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr)
            and node.value is not None
            for target in ast.walk(ast.Tuple([*getattr(node, "targets", [node_target(node)])]))
            if isinstance(target, ast.Name)
        ]
        for _ in assigned:
            self.names |= {name for name, value in assigned if self.reads(value)}

    def reads(self, expression: ast.AST) -> bool:
        """Return whether a clock's value is in the expression."""
        return any(
            is_clock(node, self.functions)
            or (isinstance(node, ast.Name) and node.id in self.names)
            or (isinstance(node, ast.Attribute) and node.attr == "until")
            for node in ast.walk(expression)
        )


def node_target(node: ast.AST) -> ast.expr:
    """Return the one target of an assignment."""
    return getattr(node, "target", ast.Tuple([]))


def functions_of(tree: ast.Module, source: str, words: re.Pattern[str]) -> list[ast.FunctionDef]:
    """Return the functions in whose text one of the words stands."""
    lines = source.splitlines()
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and words.search("\n".join(lines[node.lineno - 1 : node.end_lineno]))
    ]


def clock_functions(tree: ast.Module, source: str) -> frozenset[str]:
    """Return the functions of a module that return a clock's value, such as `children_seconds`."""
    return frozenset(
        function.name
        for function in functions_of(tree, source, WORDS)
        for times in [Times(function, frozenset())]
        for node in ast.walk(function)
        if isinstance(node, ast.Return) and node.value is not None and times.reads(node.value)
    )


def has_fake_clock(function: ast.FunctionDef) -> bool:
    """Return whether a test brings its own clock."""
    words = [argument.arg for argument in function.args.args]
    words += [node.value for node in ast.walk(function) if isinstance(node, ast.Constant)]
    return any(str(word).rpartition(".")[2] in {*CLOCKS - {"time"}, "clock"} for word in words)


def parts_of(function: ast.AST, kind: type[ast.AST], field: str) -> set[int]:
    """Return the identities of all nodes inside a field of the nodes of a kind."""
    nodes = [getattr(node, field) for node in ast.walk(function) if isinstance(node, kind)]
    roots = [root for node in nodes for root in (node if isinstance(node, list) else [node])]
    return {id(part) for root in roots for part in ast.walk(root)}


def upper_bounds(source: str) -> Iterator[int]:
    """Yield the lines at which a time is expected to be below a number."""
    tree = ast.parse(source)
    clocks = clock_functions(tree, source)
    words = re.compile("|".join([WORDS.pattern, *clocks]))
    for function in functions_of(tree, source, words):
        if has_fake_clock(function):
            continue
        times = Times(function, clocks)
        conditions = parts_of(function, ast.While, "test")
        in_loops = parts_of(function, ast.While, "body")
        asserted = parts_of(function, ast.Assert, "test")
        for node in ast.walk(function):
            if not isinstance(node, ast.Compare) or id(node) in conditions:
                continue
            sides = [node.left, *node.comparators]
            for lesser, operator, greater in zip(sides, node.ops, sides[1:], strict=False):
                if isinstance(operator, ast.Eq):
                    simulated = "lap" in ast.dump(lesser)  # by events with times of their own
                    if "approx" in ast.dump(greater) and times.reads(lesser) and not simulated:
                        yield node.lineno
                    continue
                if not isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                    continue
                if isinstance(operator, ast.Gt | ast.GtE):
                    lesser, greater = greater, lesser
                if id(node) not in asserted and times.reads(greater):
                    lesser, greater = greater, lesser  # what is too late is sought
                number = isinstance(greater, ast.Constant) or (
                    isinstance(greater, ast.Name) and greater.id.isupper()
                )
                # A wait has a deadline, and a multiple of another time is no number of seconds.
                waits = id(node) in in_loops or id(node) not in asserted
                multiple = any(isinstance(part, ast.Mult) for part in ast.walk(lesser))
                related = times.reads(greater) and (waits or multiple)
                if (times.reads(lesser) and not related) or (is_elapsed(lesser) and number):
                    yield node.lineno


def number_of(node: ast.AST | None, constants: dict[str, float]) -> float | None:
    """Return the number that is written, by itself or by the name of a constant."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    return constants.get(node.id) if isinstance(node, ast.Name) else None


def short_waits(source: str) -> Iterator[int]:
    """Yield the lines of waits for an event, a thread or a process that end within a minute."""
    if not re.search(rf"\.({'|'.join(WAITS)})\(|{WORDS.pattern}", source):
        return
    tree = ast.parse(source)
    constants = {
        target.id: float(node.value.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, int | float)
        for target in node.targets
        if isinstance(target, ast.Name)
    }  # fmt: skip
    for node in ast.walk(tree):
        limit: ast.AST | None = None
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in WAITS:
                continue
            limit = next((word.value for word in node.keywords if word.arg == "timeout"), None)
            place = WAITS[node.func.attr]
            if limit is None and place is not None and len(node.args) == place + 1:
                limit = node.args[place]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            limit = node.right if is_clock(node.left, frozenset()) else None
        seconds = number_of(limit, constants)
        if seconds is not None and 0 < seconds < LEAST:
            yield node.lineno


def found_in_tests(search) -> list[str]:
    return [
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in search(path.read_text())
    ]


def test_no_test_has_an_upper_bound_on_a_time():
    assert found_in_tests(upper_bounds) == []


def test_every_wait_has_a_minute():
    assert found_in_tests(short_waits) == []


@pytest.mark.parametrize(
    "source",
    [
        "began = time.monotonic()\nwork()\nassert time.monotonic() - began < 5",
        "began = perf_counter()\nwork()\ntook = perf_counter() - began\nassert took <= limit",
        "assert record.prefill_seconds < 2",
        "first = watch.lap()\nassert 0.1 <= first < 1",
        'assert 0 < answer["seconds"] < SLACK',
        "began = cost()\nassert 1 > cost() - began",
        "began = time.time()\nassert time.time() - began == pytest.approx(2, rel=0.1)",
        "began = time.time()\nlate = [x for x in y if time.time() - began > 3]\nassert not late",
        "until = time.monotonic() + 90\nwork()\nassert time.monotonic() < until",
    ],
)
def test_an_upper_bound_is_seen(source):
    helper = "def cost():\n    return resource.getrusage(0).ru_utime\n"
    body = "\n".join(f"    {line}" for line in source.splitlines())
    assert list(upper_bounds(f"{helper}def test_it():\n{body}\n"))


@pytest.mark.parametrize(
    "source",
    [
        "began = time.monotonic()\nwork()\nassert time.monotonic() - began >= 0.2",
        "assert record.seconds > 0",
        "until = time.monotonic() + 60\nwhile time.monotonic() < until:\n    look()",
        "until = time.monotonic() + 60\nwhile not there():\n    assert time.monotonic() < until",
        "assert peak() < 5",
        'monkeypatch.setattr("time.monotonic", clock)\nassert record.seconds < 3',
    ],
)
def test_what_is_no_bound_is_left_alone(source):
    body = "\n".join(f"    {line}" for line in source.splitlines())
    assert not list(upper_bounds(f"def test_it():\n{body}\n"))


@pytest.mark.parametrize(
    ("source", "short"),
    [
        ("thread.join(5)", True),
        ("process.communicate(timeout=30)", True),
        ("subprocess.run(command, timeout=PATIENCE)", True),
        ("until = time.monotonic() + 2", True),
        ("process.wait(60)", False),
        ("thread.join()", False),
        ('", ".join(words)', False),
        ("process.poll()", False),
    ],
)
def test_a_short_wait_is_seen(source, short):
    assert bool(list(short_waits(f"PATIENCE = 20\n{source}\n"))) is short
