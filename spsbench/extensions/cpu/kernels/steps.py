"""Kernels as operators: each has an empty result, and the steps of `program.c` that fill it.

`run_op` runs an operator at once, or has the recorder of this thread, if one is at work, note its
steps instead. `OF_TORCH` has the steps of torch's own operators, which a recorder alone needs.
"""

from array import array
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from ctypes import c_int64, c_void_p, cast, create_string_buffer
from functools import cache, lru_cache
from struct import Struct
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.extensions.cpu.kernels.native import KINDS, load_kernels

STEP_ARGS, NUMBERS, REALS, AXES, MANY = 10, 16, 2, 4, 3  # as in program.h and products.h
SCRATCH, KEYS, VALUES, FIRST = range(1, 5)  # bases of step args, as in program.h; 0: none
NO_MEMORY, NO_ROW = 1, 2  # as in program.h
TEXT, CACHE_LAYER = 6, 3  # numbers of a text, and of its part of a layer's cache
PANEL = 32  # outputs side by side, as in reading.h
SCALES = 2 * PANEL  # bytes of a group's scales in a panel of codes, and of its minima
ZERO = {8: 0, 4: 8}  # what a code of so many bits is in memory where its number is 0
HALVES = torch.int16  # bfloat16 that stand for float32: no other dtype in a model of float32
ACTIVATIONS = "silu", "relu", "gelu", "gelu_tanh"  # as in activations.h
MOST = 256  # plans that are kept of an operator with its fixed arguments
BY_NUMBER = {"mul": "scale", "div": "divide"}  # operators with a number -> their kernels
BY_TENSOR = "add", "mul"

_RECORD = Struct(f"={1 + 2 * STEP_ARGS + NUMBERS}q{REALS}d")


class UncoveredPassError(Exception):
    """A pass does what no kernel does; the message says what."""


class Call(NamedTuple):
    """One call of a kernel: what it reads and writes, as program.c describes it."""

    name: str
    args: tuple[Tensor | None, ...]  # inputs and results
    n: tuple[int, ...] = ()
    real: tuple[float, ...] = ()
    past: tuple[int, ...] | None = None  # the text and the cache layer of a step over a cache


Planned = tuple[Tensor | None, Call]

_plans: dict[Any, dict[Any, Any]] = {}  # by operator and fixed arguments; then by the others
active_recorder: ContextVar[Any] = ContextVar("active_recorder", default=None)  # by thread


class ModuleTensors:
    """Tensors of modules, whose memory may be moved: it is looked up in every pass.

    UncoveredPassError: one of them has a layout that C cannot read.
    """

    def __init__(self, state: Sequence[Tensor]) -> None:
        self._state = list(state)
        if any(x.layout != torch.strided for x in self._state):
            raise UncoveredPassError("weights in a layout of another library")
        self._forms, self._addresses = list(map(_form_of, self._state)), list[int]()

    def addresses(self) -> list[int] | None:
        """Return the tensors' addresses now, in order; None: the form of one has changed."""
        now = list(map(Tensor.data_ptr, self._state))
        if now != self._addresses:
            if list(map(_form_of, self._state)) != self._forms:
                return None
            self._addresses = now
        return self._addresses


def _form_of(weight: Tensor) -> tuple[Any, ...]:
    return weight.shape, weight.stride(), weight.dtype, weight.device


class BoundOperator:
    """An operator with its last arguments; what it does for inputs of a form is planned once."""

    def __init__(self, name: str, *fixed: Any) -> None:
        self.name, self.fixed = name, fixed
        self._tensors = [x for x in fixed if isinstance(x, Tensor)]
        self._weights = ModuleTensors(self._tensors)
        forms = [_form_of(x) if isinstance(x, Tensor) else x for x in fixed]
        self._plans = _plans.setdefault((name, *forms), {})

    def __call__(self, *inputs: Any) -> Any:
        """Run the operator as `run_op` does; return its result."""
        if active_recorder.get() is not None:
            return run_op(self.name, *inputs, *self.fixed)
        key: list[Any] = []
        pointers = []
        for x in inputs:
            if isinstance(x, Tensor):
                key += x.shape, x.stride(), x.dtype, x.is_cpu
                pointers.append(x.data_ptr())
            else:
                key.append(x)
        plan, weights = self._plans.get(tuple(key)), self._weights.addresses()
        if plan is None or weights is None:
            result, step = run_now(self.name, *inputs, *self.fixed)
            if inputs[0].numel() and weights is not None:
                self._keep_plan(tuple(key), result, step, inputs)
            return result
        shape, stride, dtype, record, pack = plan
        result = inputs[0].new_empty_strided(shape, stride, dtype=dtype)
        numbers = pack(*pointers, *weights, result.data_ptr())
        raise_failure(in_c().run_step(record, numbers, torch.get_num_threads()))
        return result

    def _keep_plan(self, key: Any, result: Tensor, step: Call, inputs: Sequence[Any]) -> None:
        """Keep the plan of `step` under `key`, unless one tensor is twice among its operands."""
        tensors = [*(x for x in inputs if isinstance(x, Tensor)), *self._tensors, result]
        numbers = {id(x): n for n, x in enumerate(tensors)}
        if len(numbers) < len(tensors):
            return
        if len(self._plans) >= MOST:
            self._plans.clear()
        bases = tuple(0 if x is None else 1 + numbers[id(x)] for x in step.args)
        record = _record(step.name, bases, step.n, step.real)
        pack = Struct(f"={8 * (TEXT + CACHE_LAYER + 1)}x{len(tensors)}q").pack
        self._plans[key] = result.shape, result.stride(), result.dtype, record, pack


def run_op(name: str, *arguments: Any) -> Any:
    """Run the operator `name`, or have a recorder at work note it; return its result.

    RuntimeError: its kernel does not read these inputs. Else it raises as `raise_failure`.
    """
    recorder = active_recorder.get()
    return run_now(name, *arguments)[0] if recorder is None else recorder.run(name, *arguments)


def run_now(name: str, *arguments: Any) -> tuple[Any, Call]:
    """Run an operator, past any recorder; return its result, None of `put`, and its step.

    If its first input is empty, no step is run: there is nothing to fill. Raises as `run_op`.
    """
    result, step = OPERATORS[name](*arguments)
    if arguments[0].numel():
        record = _record(step.name, tuple(range(1, 1 + len(step.args))), step.n, step.real)
        pointers = [0 if x is None else x.data_ptr() for x in step.args]
        numbers = array("q", (*(step.past or [0] * (TEXT + CACHE_LAYER)), 0, *pointers)).tobytes()
        raise_failure(in_c().run_step(record, numbers, torch.get_num_threads()))
    return result, step


def available() -> bool:
    """Return whether there are compiled kernels."""
    return not isinstance(load_kernels(), str)


@lru_cache(4096)
def _record(name: str, bases: tuple[int, ...], n: tuple[int, ...], real: tuple[float, ...]) -> Any:
    """Return program.h's record of a step: kernel, a base for each argument, sizes `n`, reals."""
    args = [number for base in bases for number in (base, 0)]
    filled = (*args, *[0] * (2 * STEP_ARGS - len(args)), *n, *[0] * (NUMBERS - len(n)))
    reals = (*real, *[0.0] * (REALS - len(real)))
    return create_string_buffer(_RECORD.pack(address(name), *filled, *reals), _RECORD.size)


def raise_failure(failed: int) -> None:
    """Raise MemoryError or, for an id beyond the embeddings, IndexError, by what C has returned."""
    if failed == NO_MEMORY:
        raise MemoryError("no memory for an operation")
    if failed == NO_ROW:
        raise IndexError("an id beyond the embeddings")


@cache
def in_c() -> Any:
    """Return the library, with the types of the arguments of its entries for passes."""
    kernels: Any = load_kernels()
    kernels.run_steps.argtypes = c_void_p, c_int64, c_void_p
    kernels.roll_out.argtypes = c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_void_p
    return kernels


@cache
def address(name: str) -> int:
    """Return the address of the kernel of a step."""
    return cast(getattr(load_kernels(), f"step_{name}"), c_void_p).value or 0


def bytes_of_codes(room: int, group: int, bits: int, least: bool) -> int:
    """Return the bytes of a panel of codes with `room` inputs; `least`: with minima."""
    return room * PANEL * bits // 8 + room // group * SCALES * (1 + least)


def _expect(fits: bool, what: str) -> None:
    if not fits:
        raise RuntimeError(f"{what}: expected the kind and the width of the weights")


def _product(kernel: str) -> Callable[..., Planned]:
    """Return the operator of products over panels [out / 32, in / c, 32, c]: product or tiles."""

    def planned(x: Tensor, panels: Tensor, bias: Tensor | None, out: int, *how: int) -> Planned:
        halves = kernel == "product" and (x.dtype, panels.dtype) == (torch.float32, HALVES)
        alike = panels.dtype == x.dtype or halves
        _expect(alike and panels.shape[2:] == (PANEL, 4 // panels.itemsize), "panels")
        name, width = "halves" if halves else kernel, panels.shape[1] * panels.shape[3]
        return _planned_product(name, x, panels, bias, width, (out, 0, 0, *how))

    return planned


def _coded_product(kernel: str) -> Callable[..., Planned]:
    """Return the operator of products over codes in panels [out / 32, bytes]: product or dots."""

    def planned(
        x: Tensor, panels: Tensor, bias: Tensor | None, out: int, width: int, *layout: Any
    ) -> Planned:
        """Plan [..., out] of [..., width]; `layout`: inputs of a panel, of a group, bits, ..."""
        room, group, bits, least, *how = layout
        size = bytes_of_codes(room, group, bits, least)
        _expect(panels.dtype == torch.uint8 and panels.shape[1:] == (size,), "codes")
        more = out, 0, 0, *how, room, group, ZERO[bits]
        return _planned_product(kernel_of(kernel, bits, least), x, panels, bias, width, more)

    return planned


def kernel_of(kernel: str, bits: int, least: bool) -> str:
    """Return the name of a kernel (dots or product) for codes that look so."""
    return f"{kernel}_int{bits}" + "_least" * least


def _planned_product(
    name: str, x: Tensor, panels: Tensor, bias: Tensor | None, width: int, more: tuple[int, ...]
) -> Planned:
    """Return an empty product [..., out] of `x` [..., width] and its step; else RuntimeError.

    `more` begins with out, the rest is the kernel's. Tensors are dense, bias and `x` of one dtype.
    """
    dense = x.is_contiguous() and panels.is_contiguous() and x.dtype in KINDS
    _expect(dense and x.shape[-1] == width and 0 <= more[0] <= len(panels) * PANEL, "inputs")
    whole = bias is None or (bias.shape == more[:1] and bias.is_contiguous())
    _expect(whole and (bias is None or bias.dtype == x.dtype), "a bias")
    result = x.new_empty((*x.shape[:-1], more[0]))
    args = x, panels, None, None, bias, None, None, result, None, None
    return result, Call(f"{name}_{KINDS[x.dtype]}", args, (x.numel() // width, width, *more))


def _norm(name: str, count: int) -> Callable[..., Planned]:
    """Return the operator of norm `name`: of x, `count` weights, epsilon, an RMS norm's kind."""

    def planned(x: Tensor, *more: Any) -> Planned:
        weights, (eps, *rounding) = more[:count], more[count:]
        alike = all(w.shape == x.shape[-1:] and w.dtype == x.dtype for w in weights)
        dense = all(tensor.is_contiguous() for tensor in (x, *weights))
        _expect(alike and dense and x.dtype in KINDS, "a norm")
        result, n = torch.empty_like(x), (x.numel() // x.shape[-1], x.shape[-1], *rounding)
        return result, Call(f"{name}_{KINDS[x.dtype]}", (x, *weights, result), n, (eps,))

    return planned


def _activation(name: str) -> Callable[..., Planned]:
    def planned(x: Tensor) -> Planned:
        _expect(x.is_contiguous() and x.dtype in KINDS, "an activation")
        result = torch.empty_like(x)
        return result, Call(f"{name}_{KINDS[x.dtype]}", (x, result), (x.numel(),))

    return planned


def _rows(ids: Tensor, panels: Tensor) -> Planned:
    _expect(ids.is_contiguous() and ids.dtype == torch.int64 and panels.is_contiguous(), "ids")
    wide = panels.dtype == HALVES
    dtype = torch.float32 if wide else panels.dtype
    result = panels.new_empty((len(ids), panels.shape[1] * panels.shape[3]), dtype=dtype)
    n = ids.numel(), len(panels) * PANEL, panels.shape[1]
    return result, Call("wide_rows" if wide else "rows", (ids, panels, result), n)


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Planned:
    """Plan the rotation of `x` [1, heads, m, width] by tables [1, m, width]; else RuntimeError."""
    _, heads, tokens, width = x.shape
    tables = cosines.shape == sines.shape == (1, tokens, width) and cosines.is_contiguous()
    alike = len(x) == x.stride(-1) == 1 and cosines.dtype == sines.dtype == x.dtype
    _expect(tables and sines.is_contiguous() and alike and x.dtype in KINDS, "a rotation")
    result = x.new_empty((1, tokens, heads, width)).transpose(1, 2)
    n = heads, tokens, width, *x.stride()[1:3]
    return result, Call(f"rotate_{KINDS[x.dtype]}", (x, cosines, sines, result), n)


def _put(cached: Tensor, rows: Tensor, end: int) -> Planned:
    """Return None and the step: `rows` [1, heads, m, width] go into `cached` before `end`."""
    alike = cached.ndim == rows.ndim == 4 and len(rows) == rows.stride(-1) == 1
    inside = rows.shape[2] <= end <= cached.shape[2] and rows.shape[1::2] == cached.shape[1::2]
    _expect(alike and inside and cached.dtype == rows.dtype and cached.is_contiguous(), "a cache")
    _, heads, count, width = rows.shape
    n = heads, count, width, *rows.stride()[1:3], rows.itemsize
    past = *text_record(count, end, end), 0, cached.data_ptr(), cached.shape[2]
    return None, Call("put", (cached, rows), n, (), past)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, sinks: Any, scale: float, cap: float
) -> Planned:
    """Plan `attend_fused`, [1, m, heads, width]; no `mask`: causal; RuntimeError: not `is_read`."""
    _, heads, tokens, width = query.shape
    seen, capacity = key.shape[2], key.stride(1) // width
    _expect(mask is None or is_read(mask, tokens, seen, query.dtype), "a mask")
    result = query.new_empty((1, tokens, heads, width))
    if value.stride(1) != key.stride(1):  # they have one number for both
        value = value.new_empty(1, key.shape[1], capacity, width)[:, :, :seen].copy_(value)
    n = heads, heads // key.shape[1], tokens, width, *query.stride()[1:3]
    past = *text_record(tokens, seen, seen, mask), key.data_ptr(), value.data_ptr(), capacity
    args = query, key, value, mask, sinks, result
    return result, Call(f"attend_{KINDS[query.dtype]}", args, n, (scale, cap), past)


def is_read(mask: Tensor, tokens: int, seen: int, dtype: torch.dtype) -> bool:
    """Return whether kernels read a mask as it lies: [1, 1, tokens, seen], rows in one piece."""
    return mask.shape == (1, 1, tokens, seen) and mask.stride(3) == 1 and mask.dtype == dtype


def text_record(tokens: int, end: int, seen: int, mask: Tensor | None = None) -> tuple[int, ...]:
    """Return a text's record: its rows, its end, how much of it the cache holds, its mask."""
    at = (0, 0) if mask is None else (mask.data_ptr(), mask.stride(2))
    return 0, tokens, end, seen, *at


OPERATORS: dict[str, Callable[..., Planned]] = {
    "product": _product("product"),
    "tiles": _product("tiles"),
    "quantised": _coded_product("product"),
    "quantised_dots": _coded_product("dots"),
    "norm": _norm("norm", 1),
    "layer_norm": _norm("layer_norm", 2),
    **{name: _activation(name) for name in ACTIVATIONS},
    "rows": _rows,
    "rotate": _rotate,
    "put": _put,
    "attend": _attend,
}
"""Name -> the result of an operator before it is filled, and the step that fills it."""


def _embedding(out: Tensor, table: Tensor, ids: Tensor, *more: Any) -> list[Call]:
    if not (table.is_contiguous() and ids.is_contiguous() and ids.dtype == torch.int64):
        raise UncoveredPassError("ids or embeddings that do not lie one after another")
    return [Call("embedding", (ids, table, out), (ids.numel(), len(table), table[0].nbytes))]


def _two(name: str) -> Callable[..., list[Call]]:
    """Return f(result, a, b) -> steps of torch's `name`; b: a number (BY_NUMBER) or tensor."""

    def steps(out: Tensor, a: Tensor, b: Any, **more: Any) -> list[Call]:
        by_number = not isinstance(b, Tensor)
        if more or name not in (BY_NUMBER if by_number else BY_TENSOR):
            raise UncoveredPassError(f"{name} of a {'number' if by_number else 'tensor'} {[*more]}")
        if by_number:
            return [elementwise(BY_NUMBER[name], a, a, out, float(b))]
        return [elementwise(name, a, b, out)]

    return steps


def _one(name: str) -> Callable[..., list[Call]]:
    return lambda out, a, *args, **more: [elementwise(name, a, a, out)]


def _cat(out: Tensor, parts: Sequence[Tensor], axis: int = 0) -> list[Call]:
    return _copies(parts, torch.split(out, [part.shape[axis] for part in parts], axis))


def _stack(out: Tensor, parts: Sequence[Tensor], axis: int = 0) -> list[Call]:
    return _copies(parts, out.unbind(axis))


def _copies(parts: Sequence[Tensor], places: Sequence[Tensor]) -> list[Call]:
    pairs = zip(parts, places, strict=True)
    return [elementwise("copy", part, part, place) for part, place in pairs if part.numel()]


def elementwise(name: str, a: Tensor, b: Tensor, out: Tensor, real: float = 0.0) -> Call:
    """Return a step that fills `out`, not empty, number by number; `a` and `b` broadcast to it.

    `real` is the number of an operator with one (`BY_NUMBER`). UncoveredPassError: more than `AXES`
    axes longer than 1, different dtypes, or one without kernels.
    """
    axes = [axis for axis, size in enumerate(out.shape) if size > 1]
    missing = AXES - len(axes)
    if missing < 0 or {a.dtype, b.dtype} != {out.dtype} or out.dtype not in KINDS:
        raise UncoveredPassError(f"{name} of {a.dtype}, {b.dtype} in {len(axes)} axes")
    strides = [t.expand(out.shape).stride() for t in (a, b, out)]
    steps = [(0,) * missing + tuple(stride[axis] for axis in axes) for stride in strides]
    sizes = (1,) * missing + tuple(out.shape[axis] for axis in axes)
    return Call(f"{name}_{KINDS[out.dtype]}", (a, b, out), (*sizes, *sum(steps, ())), (real,))


OF_TORCH: dict[str, Callable[..., list[Call]]] = {
    "add": _two("add"),
    "mul": _two("mul"),
    "div": _two("div"),
    "neg": _one("neg"),
    "clone": _one("copy"),
    "embedding": _embedding,
    "cat": _cat,
    "stack": _stack,
}
"""Name of an operator of torch -> the steps that do the same."""
