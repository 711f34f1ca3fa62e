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
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features
from numba.core.datamodel import models
from numba.extending import NativeValue, lower_builtin, register_model, type_callable, typeof_impl, unbox
from numba.extending import intrinsic as _intrinsic

# Untyped: what a kernel calls has not the signature that is written here (Numba adds a typing context).
intrinsic: Any = _intrinsic

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453
FOLDED = 16  # lanes that `fold` leaves, rows that `row_sums` adds up

_FLOAT, _INT32, _INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
_FLAGS = ("contract",)
# 2^f = 1 + f (c1 + f (c2 + ...)): relative error 8e-8 on [-0.5, 0.5], and the less the smaller f
_EXP2 = (1.0, 0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957,
                 0.0013264723820611835)  # fmt: skip
# log(1 + w) = 2 s (1 + s^2 (c1 + s^2 (c2 + ...))) with s = w / (2 + w), 0 <= w <= 1
_LOG1P = (1.0, 0.3333320915699005, 0.2001076340675354, 0.14000901579856873, 0.1400599628686905)
_PHI1 = (1.0, 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040, 1 / 40320, 1 / 362880)
_PHI1_SLOPE = (1 / 2, 1 / 3, 1 / 8, 1 / 30, 1 / 144, 1 / 840, 1 / 5760, 1 / 45360)


def host_features() -> str:
    """The instruction sets Numba compiles for, as LLVM writes them: "+avx2,-avx512f,..."."""
    return get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES


def _has_avx512() -> bool:
    features = set(host_features().split(","))
    return {"+avx512f", "+avx512dq"} <= features


def host_width() -> int:
    """How many lanes a vector should have here: enough to hide latency, few enough to stay in registers."""
    return 64 if _has_avx512() else 16


class Vector(types.Type):
    """The Numba type of `width` float32 lanes."""

    def __init__(self, width: int) -> None:
        self.width = width
        super().__init__(name=f"float32x{width}")


class Lanes:
    """An argument that tells a kernel how wide its vectors are and which sources it was compiled from."""

    def __init__(self, width: int, fingerprint: str = "") -> None:
        if width % FOLDED:
            raise ValueError(f"vectors need a multiple of {FOLDED} lanes, got {width}")
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
        super().__init__(manager, vector, _floats(vector.width))


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
        return ir.Constant(_INT64, lanes.width)

    return types.int64(lanes), emit


@intrinsic
def get(typing: Any, address: Any, index: Any) -> Any:
    """The float32 at `address[index]`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0], args[1], _FLOAT))

    return types.float32(types.int64, types.int64), emit


@intrinsic
def put(typing: Any, address: Any, index: Any, value: Any) -> Any:
    """`address[index] = value`, a float32."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(builder, args[0], args[1], _FLOAT))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), emit


@intrinsic
def load(typing: Any, lanes: Any, address: Any, index: Any) -> Any:
    """The vector at `address[index:]`."""
    vector = Vector(lanes.width)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _load(builder, args[1], args[2], vector.width)

    return vector(lanes, types.int64, types.int64), emit


@intrinsic
def store(typing: Any, address: Any, index: Any, vector: Any) -> Any:
    """`address[index:] = vector`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(builder, args[0], args[1], args[2])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, vector), emit


@intrinsic
def load_first(typing: Any, lanes: Any, address: Any, index: Any, count: Any) -> Any:
    """The first `count` numbers at `address[index:]`, then zeros; nothing behind them is read."""
    vector = Vector(lanes.width)

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, address, index, count = args
        result = cgutils.alloca_once(builder, _floats(vector.width))
        whole = builder.icmp_signed(">=", count, ir.Constant(_INT64, vector.width))
        with builder.if_else(whole, likely=True) as (then, otherwise):
            with then:
                builder.store(_load(builder, address, index, vector.width), result)
            with otherwise:
                builder.store(_constant(0.0, vector.width), result)
                source = _pointer(builder, address, index, _FLOAT)
                target = builder.bitcast(result, _FLOAT.as_pointer())
                cgutils.raw_memcpy(builder, target, source, count, ir.Constant(_INT64, 4))
        return builder.load(result)

    return vector(lanes, types.int64, types.int64, types.int64), emit


@intrinsic
def store_first(typing: Any, address: Any, index: Any, vector: Any, count: Any) -> Any:
    """Writes the first `count` lanes to `address[index:]`; nothing behind them is touched."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address, index, value, count = args
        spilled = cgutils.alloca_once(builder, value.type)
        whole = builder.icmp_signed(">=", count, ir.Constant(_INT64, vector.width))
        with builder.if_else(whole, likely=True) as (then, otherwise):
            with then:
                _store(builder, address, index, value)
            with otherwise:
                builder.store(value, spilled)
                source = builder.bitcast(spilled, _FLOAT.as_pointer())
                target = _pointer(builder, address, index, _FLOAT)
                cgutils.raw_memcpy(builder, target, source, count, ir.Constant(_INT64, 4))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, vector, types.int64), emit


def _define_prefetch(write: int) -> Any:
    @intrinsic
    def prefetch(typing: Any, lanes: Any, address: Any, index: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            flags = [ir.Constant(_INT32, flag) for flag in (write, 2, 1)]  # 2: second-level cache, 1: data
            first = _pointer(builder, args[1], args[2], ir.IntType(8))
            for line in range(0, 4 * lanes.width, 64):
                place = builder.gep(first, [ir.Constant(_INT64, line)])
                _call(builder, "llvm.prefetch.p0", ir.VoidType(), [place, *flags])
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
        one = ir.Constant(_floats(vector.width), ir.Undefined)
        one = builder.insert_element(one, args[1], ir.Constant(_INT32, 0))
        return builder.shuffle_vector(one, one, _lane_numbers([0] * vector.width))

    return vector(lanes, types.float32), emit


def _define_operator(python_operator: Any, instruction: str) -> None:
    @type_callable(python_operator)
    def _type(context: Any) -> Any:
        def typer(a: Any, b: Any) -> Any:
            return a if isinstance(a, Vector) and a == b else None

        return typer

    @lower_builtin(python_operator, Vector, Vector)
    def _lower(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=_FLAGS)


_define_operator(operator.add, "fadd")
_define_operator(operator.sub, "fsub")
_define_operator(operator.mul, "fmul")
_define_operator(operator.truediv, "fdiv")


@intrinsic
def exp2(typing: Any, x: Any) -> Any:
    """2^x, relative error 1.5e-7."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _exp2(builder, args[0])

    return x(x), emit


@intrinsic
def sigmoid(typing: Any, x: Any) -> Any:
    """1 / (1 + exp(-x))."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        w, one = _exp_of_minus_abs(builder, args[0]), _constant(1.0, x.width)
        return _sigmoid(builder, args[0], w, builder.fdiv(one, builder.fadd(w, one)))

    return x(x), emit


@intrinsic
def softplus(typing: Any, x: Any) -> Any:
    """log(1 + exp(x)) and its derivative, sigmoid(x)."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # softplus(x) = max(x, 0) + log(1 + w), w = exp(-|x|); one division serves 1 / (1 + w) and 1 / (2 + w)
        w, one = _exp_of_minus_abs(builder, args[0]), _constant(1.0, x.width)
        plus1, plus2 = builder.fadd(w, one), builder.fadd(w, _constant(2.0, x.width))
        inverse = builder.fdiv(one, builder.fmul(plus1, plus2))
        s = builder.fmul(w, builder.fmul(inverse, plus1))
        log1p = _polynomial(builder, builder.fmul(s, s), _LOG1P)
        value = _fma(builder, builder.fadd(s, s), log1p, _at_least(builder, args[0], 0.0))
        slope = _sigmoid(builder, args[0], w, builder.fmul(inverse, plus2))
        return context.make_tuple(builder, signature.return_type, [value, slope])

    return types.UniTuple(x, 2)(x), emit


@intrinsic
def phi1(typing: Any, x: Any, exp_x: Any) -> Any:
    """phi1(x) = (exp(x) - 1) / x and its derivative, given exp(x); below |x| = 0.5 by their series."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value, e = args
        near = builder.fcmp_ordered("<", _absolute(builder, value), _constant(0.5, x.width))
        series, slope_series = (_polynomial(builder, value, c) for c in (_PHI1, _PHI1_SLOPE))
        quotient = builder.fdiv(builder.fsub(e, _constant(1.0, x.width)), value)
        slope = builder.fdiv(builder.fsub(e, quotient), value)
        results = [builder.select(near, series, quotient), builder.select(near, slope_series, slope)]
        return context.make_tuple(builder, signature.return_type, results)

    return types.UniTuple(x, 2)(x, x), emit


@intrinsic
def fold(typing: Any, x: Any) -> Any:
    """Adds the quarters (halves, ...) of a vector until 16 lanes are left."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        parts = _split(builder, args[0])
        while len(parts) > 1:
            paired = zip(parts[::2], parts[1::2], strict=False)
            parts = [builder.fadd(a, b) for a, b in paired] + parts[len(parts) // 2 * 2 :]
        return parts[0]

    return Vector(FOLDED)(x), emit


@intrinsic
def row_sums(typing: Any, address: Any) -> Any:
    """Sums each of the 16 rows of 16 floats at `address`; lane r holds the sum of row r."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        rows = [_load(builder, args[0], ir.Constant(_INT64, FOLDED * r), FOLDED) for r in range(FOLDED)]
        span = 1
        while (
            len(rows) > 1
        ):  # two rows share a vector, then four, ...: each step halves rows and what is left
            even, odd = _interleave(span)
            pairs = zip(rows[::2], rows[1::2], strict=True)
            rows = [
                builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd))
                for a, b in pairs
            ]
            span *= 2
        return rows[0]

    return Vector(FOLDED)(types.int64), emit


def _interleave(span: int) -> tuple[ir.Constant, ir.Constant]:
    """Lanes of two rows whose blocks of `2 span` hold partial sums: first and second half of every block."""
    first, second = [], []
    for lane in range(FOLDED):
        block, offset = divmod(lane, 2 * span)
        row = 0 if offset < span else FOLDED
        first.append(row + block * 2 * span + offset % span)
        second.append(first[-1] + span)
    return _lane_numbers(first), _lane_numbers(second)


def _floats(width: int) -> ir.VectorType:
    return ir.VectorType(_FLOAT, width)


def _ints(width: int) -> ir.VectorType:
    return ir.VectorType(_INT32, width)


def _constant(value: float, width: int) -> ir.Constant:
    return ir.Constant(_floats(width), [value] * width)


def _lane_numbers(lanes: Sequence[int]) -> ir.Constant:
    return ir.Constant(_ints(len(lanes)), list(lanes))


def _pointer(builder: Any, address: Any, index: Any, element: Any) -> Any:
    base = builder.inttoptr(address, _FLOAT.as_pointer())
    return builder.bitcast(builder.gep(base, [index]), element.as_pointer())


def _load(builder: Any, address: Any, index: Any, width: int) -> Any:
    value = builder.load(_pointer(builder, address, index, _floats(width)))
    value.align = 4
    return value


def _store(builder: Any, address: Any, index: Any, value: Any) -> None:
    builder.store(value, _pointer(builder, address, index, value.type)).align = 4


def _call(builder: Any, name: str, result: Any, args: Sequence[Any]) -> Any:
    function_type = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), args)


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return _call(builder, f"llvm.fmuladd.v{a.type.count}f32", a.type, [a, b, c])


def _polynomial(builder: Any, x: Any, coefficients: Sequence[float]) -> Any:
    result = _constant(coefficients[-1], x.type.count)
    for c in reversed(coefficients[:-1]):
        result = _fma(builder, result, x, _constant(c, x.type.count))
    return result


def _at_least(builder: Any, x: Any, limit: float) -> Any:
    """max(x, limit) that keeps a NaN in x, unlike LLVM's maxnum."""
    limits = _constant(limit, x.type.count)
    return builder.select(builder.fcmp_ordered(">", limits, x), limits, x)


def _masked_bits(builder: Any, operation: str, x: Any, mask: int) -> Any:
    count = x.type.count
    bits = getattr(builder, operation)(
        builder.bitcast(x, _ints(count)), ir.Constant(_ints(count), [mask] * count)
    )
    return builder.bitcast(bits, x.type)


def _absolute(builder: Any, x: Any) -> Any:
    return _masked_bits(builder, "and_", x, 0x7FFFFFFF)


def _exp_of_minus_abs(builder: Any, x: Any) -> Any:
    minus_abs = _masked_bits(builder, "or_", x, -0x80000000)
    return _exp2(builder, builder.fmul(minus_abs, _constant(LOG2_E, x.type.count)))


def _sigmoid(builder: Any, x: Any, w: Any, inverse: Any) -> Any:
    """sigmoid(x) from w = exp(-|x|) and 1 / (1 + w); for a NaN both sides are NaN."""
    positive = builder.fcmp_ordered(">", x, _constant(0.0, x.type.count))
    return builder.select(positive, inverse, builder.fmul(w, inverse))


def _exp2(builder: Any, x: Any) -> Any:
    if _has_avx512() and x.type.count % 16 == 0:
        return _join(builder, [_exp2_avx512(builder, part) for part in _split(builder, x)])
    count = x.type.count
    # adding 1.5 * 2^23 rounds x to an integer, which stands in the low bits
    magic = _constant(12582912.0, count)
    x = _at_least(builder, x, -126.0)
    shifted = builder.fadd(x, magic)
    fraction = builder.fsub(x, builder.fsub(shifted, magic))
    mantissa = builder.bitcast(_polynomial(builder, fraction, _EXP2), _ints(count))
    exponent = builder.shl(builder.bitcast(shifted, _ints(count)), ir.Constant(_ints(count), [23] * count))
    return builder.bitcast(builder.add(mantissa, exponent), x.type)


def _exp2_avx512(builder: Any, x: Any) -> Any:
    """x - round(x) and a scaling by 2^n are instructions; 0, infinity and NaN come out by themselves."""
    mask, rounding = ir.Constant(ir.IntType(16), -1), ir.Constant(_INT32, 4)
    reduce, scale = "llvm.x86.avx512.mask.reduce.ps.512", "llvm.x86.avx512.mask.scalef.ps.512"
    fraction = _call(builder, reduce, x.type, [x, ir.Constant(_INT32, 0), x, mask, rounding])
    mantissa = _polynomial(builder, fraction, _EXP2)
    return _call(builder, scale, x.type, [mantissa, builder.fsub(x, fraction), mantissa, mask, rounding])


def _split(builder: Any, x: Any) -> list[Any]:
    starts = range(0, x.type.count, FOLDED)
    return [builder.shuffle_vector(x, x, _lane_numbers(range(s, s + FOLDED))) for s in starts]


def _join(builder: Any, parts: list[Any]) -> Any:
    while len(parts) > 1:
        lanes = _lane_numbers(range(2 * parts[0].type.count))
        parts = [builder.shuffle_vector(a, b, lanes) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
