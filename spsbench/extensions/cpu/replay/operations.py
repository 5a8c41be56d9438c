"""Operators, of torch and of ours, as the operations of `program.c`: one entry each in a table."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spsbench.extensions.cpu.kernels.native import KINDS
from spsbench.extensions.cpu.packing.coded_panels import ZERO
from spsbench.extensions.cpu.replay.merged_products import MAX_MERGED

BY_NUMBER = {"mul": "scale", "div": "divide"}  # operators with a number -> their kernels
ACTIVATIONS = "silu", "relu", "gelu", "gelu_tanh"  # as in activations.h
AXES = 4  # of elementwise operations, as in program.h


class RefusedError(Exception):
    """A layer does what no kernel does; the message says what."""


class Step(NamedTuple):
    """One operation: a function of the compiled kernels, as program.c describes it."""

    name: str
    at: tuple[Tensor | None, ...]  # inputs and results
    n: tuple[int, ...] = ()
    real: tuple[float, ...] = ()


def present(tensor: Tensor | None) -> Tensor | None:
    """Return `tensor`, or None if it is C's placeholder of a missing tensor."""
    return None if tensor is None or tensor.numel() == 0 else tensor


def _product(out: Any, x: Tensor, *more: Any) -> tuple[list[Any], list[int], Sequence[Any]]:
    """Return the tensors, the sizes and the further arguments of one or more products."""
    outputs = out if isinstance(out, tuple) else (out,)
    count = len(outputs)
    panels, biases, sizes = (_filled(more[i * count : (i + 1) * count]) for i in range(3))
    outs = [size if panel is not None else 0 for panel, size in zip(panels, sizes, strict=True)]
    sizes = [x.numel() // x.shape[-1], x.shape[-1], *outs]
    return [x, *panels, *biases, *_filled(outputs)], sizes, more[3 * count :]


def _filled(operands: Sequence[Any]) -> list[Any]:
    """Return a list of `MAX_MERGED` operands, padded with None for missing ones."""
    filled = [present(operand) if isinstance(operand, Tensor) else operand for operand in operands]
    return filled + [None] * (MAX_MERGED - len(filled))


def _plain(kernel: str) -> Callable[..., list[Step]]:
    def steps(out: Any, x: Tensor, panels: Tensor, *more: Any) -> list[Step]:
        places, sizes, how = _product(out, x, panels, *more)
        name = kernel if panels.dtype == x.dtype else "halves"
        return [Step(f"{name}_{KINDS[x.dtype]}", tuple(places), (*sizes, *how))]

    return steps


def _coded(kernel: str) -> Callable[..., list[Step]]:
    def steps(out: Any, x: Tensor, *more: Any) -> list[Step]:
        places, sizes, (_, room, group, bits, least, *read) = _product(out, x, *more)
        name = f"{kernel}_int{bits}{'_least' * bool(least)}_{KINDS[x.dtype]}"
        return [Step(name, tuple(places), (*sizes, *read, room, group, ZERO[bits]))]

    return steps


def _norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, way: int) -> list[Step]:
    n = x.numel() // x.shape[-1], x.shape[-1], way
    return [Step(f"norm_{KINDS[x.dtype]}", (x, weight, out), n, (eps,))]


def _layer_norm(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> list[Step]:
    n = x.numel() // x.shape[-1], x.shape[-1]
    return [Step(f"layer_norm_{KINDS[x.dtype]}", (x, weight, bias, out), n, (eps,))]


def _activation(name: str) -> Callable[..., list[Step]]:
    return lambda out, x: [Step(f"{name}_{KINDS[x.dtype]}", (x, out), (x.numel(),))]


def _embedding(out: Tensor, table: Tensor, ids: Tensor, *more: Any) -> list[Step]:
    if not (table.is_contiguous() and ids.is_contiguous() and ids.dtype == torch.int64):
        raise RefusedError("ids or embeddings that do not lie one after another")
    n = ids.numel(), len(table), table[0].nbytes
    return [Step("embedding", (ids, table, out), n)]


def _rows(out: Tensor, ids: Tensor, panels: Tensor) -> list[Step]:
    n = ids.numel(), panels.shape[0] * panels.shape[2], panels.shape[1]
    return [Step("rows" if out.dtype == panels.dtype else "wide_rows", (ids, panels, out), n)]


def _rotate(out: Tensor, x: Tensor, cosines: Tensor, sines: Tensor) -> list[Step]:
    n = *x.shape[1:], *x.stride()[1:3]
    return [Step(f"rotate_{KINDS[x.dtype]}", (x, cosines, sines, out), n)]


def _attend(
    out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    cap: float,
) -> list[Step]:
    _, heads, tokens, width = query.shape
    n = heads, heads // key.shape[1], tokens, width, *query.stride()[1:3]
    places = query, key, value, present(mask), present(sinks), out
    return [Step(f"attend_{KINDS[query.dtype]}", places, n, (scale, cap))]


def _two(name: str) -> Callable[..., list[Step]]:
    def steps(out: Tensor, a: Tensor, b: Any, **more: Any) -> list[Step]:
        if more:
            raise RefusedError(f"{name} with {', '.join(more)}")
        if not isinstance(b, Tensor) and name in BY_NUMBER:
            return [elementwise(BY_NUMBER[name], a, a, out, float(b))]
        if not isinstance(b, Tensor) or name == "div":
            raise RefusedError(f"{name} of a {'tensor' if name == 'div' else 'number'}")
        return [elementwise(name, a, b, out)]

    return steps


def _one(name: str) -> Callable[..., list[Step]]:
    return lambda out, a, *args, **more: [elementwise(name, a, a, out)]


def _cat(out: Tensor, parts: Sequence[Tensor], axis: int = 0) -> list[Step]:
    return _copies(parts, torch.split(out, [part.shape[axis] for part in parts], axis))


def _stack(out: Tensor, parts: Sequence[Tensor], axis: int = 0) -> list[Step]:
    return _copies(parts, out.unbind(axis))


def _copies(parts: Sequence[Tensor], places: Sequence[Tensor]) -> list[Step]:
    pairs = zip(parts, places, strict=True)
    return [elementwise("copy", part, part, place) for part, place in pairs if part.numel()]


def elementwise(name: str, a: Tensor, b: Tensor, out: Tensor, real: float = 0.0) -> Step:
    """Number by number; `a` and `b` may be narrower than `out`.

    Raises:
        RefusedError: more axes, or different kinds of number.
    """
    axes = [axis for axis, size in enumerate(out.shape) if size > 1]
    missing = AXES - len(axes)
    if missing < 0 or {a.dtype, b.dtype} != {out.dtype} or out.dtype not in KINDS:
        raise RefusedError(f"{name} of {a.dtype}, {b.dtype} in {len(axes)} axes")
    strides = [t.expand(out.shape).stride() for t in (a, b, out)]
    steps = [(0,) * missing + tuple(stride[axis] for axis in axes) for stride in strides]
    sizes = (1,) * missing + tuple(out.shape[axis] for axis in axes)
    return Step(f"{name}_{KINDS[out.dtype]}", (a, b, out), (*sizes, *sum(steps, ())), (real,))


OURS: dict[str, Callable[..., list[Step]]] = {
    **{f"product{many}": _plain("product") for many in ("", f"_{MAX_MERGED}")},
    **{f"tiles{many}": _plain("tiles") for many in ("", f"_{MAX_MERGED}")},
    **{f"quantised{many}": _coded("product") for many in ("", f"_{MAX_MERGED}")},
    **{f"quantised_dots{many}": _coded("dots") for many in ("", f"_{MAX_MERGED}")},
    "norm": _norm,
    "layer_norm": _layer_norm,
    **{name: _activation(name) for name in ACTIVATIONS},
    "rows": _rows,
    "rotate": _rotate,
    "attend": _attend,
}
OF_TORCH: dict[str, Callable[..., list[Step]]] = {
    "add": _two("add"),
    "mul": _two("mul"),
    "div": _two("div"),
    "neg": _one("neg"),
    "clone": _one("copy"),
    "embedding": _embedding,
    "cat": _cat,
    "stack": _stack,
}
"""Name of an operator, of torch or of `operators.c` -> its operations."""
