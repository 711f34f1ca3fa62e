"""Vectors of float32 lanes inside Numba functions.

A `Vector` is an LLVM vector: its arithmetic compiles to whatever the machine has (AVX-512, AVX2, NEON), over
several registers at a time. Kernels read and write memory by address; an index counts 4-byte numbers.

The number of lanes comes from the type of a `Lanes` object, the first argument of every kernel and of each
function that makes a vector. It also carries a fingerprint of the sources, so Numba's cache, which looks at
argument types and at nothing else that could have changed, never hands out a stale kernel.

`contract` (a * b + c in one instruction) is the only liberty the compiler gets: with `nnan` or `reassoc` a
NaN could vanish and sums could change their order.
"""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.extending import NativeValue, lower_builtin, register_model, type_callable, typeof_impl, unbox
from numba.extending import intrinsic as _intrinsic

from ssmith.ops.simd import lowering

# Untyped: what a kernel calls has not the signature that is written here (Numba adds a typing context).
intrinsic: Any = _intrinsic

LOG2_E, LN_2 = lowering.LOG2_E, 0.6931471805599453
FOLDED = lowering.FOLDED  # lanes that `fold` leaves, rows that `row_sums` adds up


def host_width() -> int:
    """How many lanes a vector should have here: enough to hide latency, few enough to stay in registers."""
    if lowering.has_avx512():
        return 64
    return 32 if "+avx2" in lowering.host_features() else 16


class Vector(types.Type):
    """The Numba type of `width` float32 lanes."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(name=f"float32x{width}")


class Lanes:
    """An argument that tells a kernel how wide its vectors are and which sources it was compiled from."""

    def __init__(self, width: int, fingerprint: str = "") -> None:
        if width < FOLDED or width & (width - 1):
            raise ValueError(f"a vector has {FOLDED} lanes, or 32, 64, ..., got {width}")
        self.width = width
        self._numba_type_ = LanesType(width, fingerprint)


class LanesType(types.Type):
    """The Numba type of a `Lanes` object."""

    def __init__(self, width: int, fingerprint: str) -> None:
        self.width = width
        self.fingerprint = fingerprint
        super().__init__(name=f"Lanes({width}, {fingerprint})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Any) -> None:
        super().__init__(manager, vector, lowering.floats(vector.width))


register_model(LanesType)(models.OpaqueModel)


@typeof_impl.register(Lanes)
def _typeof_lanes(value: Lanes, context: Any) -> LanesType:
    return value._numba_type_


@unbox(LanesType)
def _unbox_lanes(typ: Any, obj: Any, c: Any) -> Any:
    return NativeValue(c.context.get_dummy_value())


@intrinsic
def width(typing: Any, lanes: Any) -> Any:
    """The number of lanes, a constant."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return ir.Constant(lowering.INT64, lanes.width)

    return types.int64(lanes), emit


@intrinsic
def next_task(typing: Any, tickets: Any) -> Any:
    """Draws the next number from the counter at `tickets`; no two threads get the same."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        counter = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", counter, ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.int64), emit


@intrinsic
def get(typing: Any, address: Any, index: Any) -> Any:
    """The float32 at `address[index]`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(lowering.pointer(builder, args[0], args[1], lowering.FLOAT))

    return types.float32(types.int64, types.int64), emit


@intrinsic
def put(typing: Any, address: Any, index: Any, value: Any) -> Any:
    """`address[index] = value`, a float32."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], lowering.pointer(builder, args[0], args[1], lowering.FLOAT))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), emit


@intrinsic
def load(typing: Any, lanes: Any, address: Any, index: Any) -> Any:
    """The vector at `address[index:]`."""
    vector = Vector(lanes.width)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return lowering.load(builder, args[1], args[2], vector.width)

    return vector(lanes, types.int64, types.int64), emit


@intrinsic
def store(typing: Any, address: Any, index: Any, vector: Any) -> Any:
    """`address[index:] = vector`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lowering.store(builder, args[0], args[1], args[2])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, vector), emit


@intrinsic
def load_first(typing: Any, lanes: Any, address: Any, index: Any, count: Any) -> Any:
    """The first `count` numbers at `address[index:]`, then zeros; nothing behind them is read."""
    vector = Vector(lanes.width)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, address, index, count = args
        spilled = cgutils.alloca_once(builder, lowering.floats(vector.width))
        whole = builder.icmp_signed(">=", count, ir.Constant(lowering.INT64, vector.width))
        with builder.if_else(whole, likely=True) as (then, otherwise):
            with then:
                all_lanes, then_block = lowering.load(builder, address, index, vector.width), builder.block
            with otherwise:
                builder.store(lowering.constant(0.0, vector.width), spilled)
                source = lowering.pointer(builder, address, index, lowering.FLOAT)
                target = builder.bitcast(spilled, lowering.FLOAT.as_pointer())
                cgutils.raw_memcpy(builder, target, source, count, ir.Constant(lowering.INT64, 4))
                some_lanes, otherwise_block = builder.load(spilled), builder.block
        result = builder.phi(lowering.floats(vector.width))
        result.add_incoming(all_lanes, then_block)
        result.add_incoming(some_lanes, otherwise_block)
        return result

    return vector(lanes, types.int64, types.int64, types.int64), emit


@intrinsic
def store_first(typing: Any, address: Any, index: Any, vector: Any, count: Any) -> Any:
    """Writes the first `count` lanes to `address[index:]`; nothing behind them is touched."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, index, value, count = args
        spilled = cgutils.alloca_once(builder, value.type)
        whole = builder.icmp_signed(">=", count, ir.Constant(lowering.INT64, vector.width))
        with builder.if_else(whole, likely=True) as (then, otherwise):
            with then:
                lowering.store(builder, address, index, value)
            with otherwise:
                builder.store(value, spilled)
                source = builder.bitcast(spilled, lowering.FLOAT.as_pointer())
                target = lowering.pointer(builder, address, index, lowering.FLOAT)
                cgutils.raw_memcpy(builder, target, source, count, ir.Constant(lowering.INT64, 4))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, vector, types.int64), emit


def _define_prefetch(write: int) -> Any:
    @intrinsic
    def prefetch(typing: Any, lanes: Any, address: Any, index: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            # 2: into the second-level cache, the first is full of tiles; 1: data, not code
            flags = [ir.Constant(lowering.INT32, flag) for flag in (write, 2, 1)]
            first = lowering.pointer(builder, args[1], args[2], ir.IntType(8))
            for line in range(0, 4 * lanes.width, 64):
                place = builder.gep(first, [ir.Constant(lowering.INT64, line)])
                lowering.call(builder, "llvm.prefetch.p0", ir.VoidType(), [place, *flags])
            return context.get_dummy_value()

        return types.void(lanes, types.int64, types.int64), emit

    return prefetch


prefetch = _define_prefetch(0)  # asks for the vector at `address[index:]`, to be loaded soon
prefetch_for_store = _define_prefetch(1)


@intrinsic
def broadcast(typing: Any, lanes: Any, value: Any) -> Any:
    """A float32 in every lane."""
    vector = Vector(lanes.width)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one = ir.Constant(lowering.floats(vector.width), ir.Undefined)
        one = builder.insert_element(one, args[1], ir.Constant(lowering.INT32, 0))
        return builder.shuffle_vector(one, one, lowering.lane_numbers([0] * vector.width))

    return vector(lanes, types.float32), emit


def _define_operator(python_operator: Any, instruction: str) -> None:
    @type_callable(python_operator)
    def _type(context: Any) -> Any:
        def typer(a: Any, b: Any) -> Any:
            return a if isinstance(a, Vector) and a == b else None

        return typer

    @lower_builtin(python_operator, Vector, Vector)
    def _lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=lowering.FLAGS)


_define_operator(operator.add, "fadd")
_define_operator(operator.sub, "fsub")
_define_operator(operator.mul, "fmul")
_define_operator(operator.truediv, "fdiv")


@intrinsic
def exp2(typing: Any, x: Any) -> Any:
    """2^x, relative error 1.5e-7."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return lowering.exp2(builder, args[0])

    return x(x), emit


@intrinsic
def sigmoid(typing: Any, x: Any) -> Any:
    """1 / (1 + exp(-x))."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        w, one = lowering.exp_of_minus_abs(builder, args[0]), lowering.constant(1.0, x.width)
        return lowering.sigmoid(builder, args[0], w, builder.fdiv(one, builder.fadd(w, one)))

    return x(x), emit


@intrinsic
def softplus(typing: Any, x: Any) -> Any:
    """log(1 + exp(x)) and its derivative, sigmoid(x)."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # softplus(x) = max(x, 0) + log(1 + w), w = exp(-|x|); one division serves 1 / (1 + w) and 1 / (2 + w)
        w, one = lowering.exp_of_minus_abs(builder, args[0]), lowering.constant(1.0, x.width)
        plus1, plus2 = builder.fadd(w, one), builder.fadd(w, lowering.constant(2.0, x.width))
        inverse = builder.fdiv(one, builder.fmul(plus1, plus2))
        s = builder.fmul(w, builder.fmul(inverse, plus1))
        log1p = lowering.polynomial(builder, builder.fmul(s, s), lowering.LOG1P)
        value = lowering.fma(builder, builder.fadd(s, s), log1p, lowering.at_least(builder, args[0], 0.0))
        slope = lowering.sigmoid(builder, args[0], w, builder.fmul(inverse, plus2))
        return context.make_tuple(builder, signature.return_type, [value, slope])

    return types.UniTuple(x, 2)(x), emit


@intrinsic
def phi1(typing: Any, x: Any, exp_x: Any) -> Any:
    """phi1(x) = (exp(x) - 1) / x and its derivative, given exp(x); below |x| = 1 by their series."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, e = args
        near = builder.fcmp_ordered("<", lowering.absolute(builder, value), lowering.constant(1.0, x.width))
        series = lowering.polynomial(builder, value, lowering.PHI1)
        slope_series = lowering.polynomial(builder, value, lowering.PHI1_SLOPE)
        quotient = builder.fdiv(builder.fsub(e, lowering.constant(1.0, x.width)), value)
        slope = builder.fdiv(builder.fsub(e, quotient), value)
        results = [builder.select(near, series, quotient), builder.select(near, slope_series, slope)]
        return context.make_tuple(builder, signature.return_type, results)

    return types.UniTuple(x, 2)(x, x), emit


@intrinsic
def fold(typing: Any, x: Any) -> Any:
    """Adds the quarters (halves, ...) of a vector until 16 lanes are left."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        parts = lowering.split(builder, args[0])
        while len(parts) > 1:
            parts = [builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        return parts[0]

    return Vector(FOLDED)(x), emit


@intrinsic
def row_sums(typing: Any, address: Any) -> Any:
    """Sums each of the 16 rows of 16 floats at `address`; lane r holds the sum of row r."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        starts = [ir.Constant(lowering.INT64, FOLDED * r) for r in range(FOLDED)]
        rows = [lowering.load(builder, args[0], start, FOLDED) for start in starts]
        span = 1
        # First two rows share a vector, then four, ...: each step halves the rows, and what is left of each.
        while len(rows) > 1:
            even, odd = lowering.interleave(span)
            rows = [
                builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd))
                for a, b in zip(rows[::2], rows[1::2], strict=True)
            ]
            span *= 2
        return rows[0]

    return Vector(FOLDED)(types.int64), emit
