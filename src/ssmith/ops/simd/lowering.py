"""LLVM code for vectors: what the intrinsics of vectors.py are made of.

The functions that take a builder append instructions to it and return the value they make.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, config
from numba.core.codegen import get_host_cpu_features

LOG2_E = 1.4426950408889634
FOLDED = 16

FLOAT, INT32, INT64 = ir.FloatType(), ir.IntType(32), ir.IntType(64)
FLAGS = ("contract",)
# 2^f = 1 + f (c1 + f (c2 + ...)): relative error 8e-8 on [-0.5, 0.5], and the less the smaller f
EXP2 = (1.0, 0.6931470036506653, 0.24022242426872253, 0.05550733581185341, 0.009671512991189957,
                 0.0013264723820611835)  # fmt: skip
# log(1 + w) = 2 s (1 + s^2 (c1 + s^2 (c2 + ...))) with s = w / (2 + w), 0 <= w <= 1
LOG1P = (1.0, 0.3333320915699005, 0.2001076340675354, 0.14000901579856873, 0.1400599628686905)
# phi1(x) = sum of x^k / (k + 1)!, its derivative = sum of x^k / (k! (k + 2))
PHI1 = tuple(1.0 / math.factorial(k + 1) for k in range(11))
PHI1_SLOPE = tuple(1.0 / (math.factorial(k) * (k + 2)) for k in range(11))


def host_features() -> str:
    """The instruction sets Numba compiles for, as LLVM writes them: "+avx2,-avx512f,..."."""
    asked_for = getattr(config, "CPU_FEATURES", None)  # NUMBA_CPU_FEATURES
    return get_host_cpu_features() if asked_for is None else asked_for


def has_avx512() -> bool:
    """Whether Numba compiles for AVX-512, with the instructions that `exp2_avx512` names."""
    return {"+avx512f", "+avx512dq"} <= set(host_features().split(","))


def floats(width: int) -> ir.VectorType:
    """The LLVM type of `width` floats."""
    return ir.VectorType(FLOAT, width)


def ints(width: int) -> ir.VectorType:
    """The LLVM type of `width` 32-bit integers."""
    return ir.VectorType(INT32, width)


def constant(value: float, width: int) -> ir.Constant:
    """A number in every lane."""
    return ir.Constant(floats(width), [value] * width)


def lane_numbers(lanes: Sequence[int]) -> ir.Constant:
    """The lanes that a shuffle takes."""
    return ir.Constant(ints(len(lanes)), list(lanes))


def pointer(builder: Any, address: Any, index: Any, element: Any) -> Any:
    """`address[index]`, in floats, as a pointer to `element`."""
    base = builder.inttoptr(address, FLOAT.as_pointer())
    return builder.bitcast(builder.gep(base, [index]), element.as_pointer())


def load(builder: Any, address: Any, index: Any, width: int) -> Any:
    """`width` floats from an address that is a multiple of 4."""
    value = builder.load(pointer(builder, address, index, floats(width)))
    value.align = 4
    return value


def store(builder: Any, address: Any, index: Any, value: Any) -> None:
    """Writes a vector to an address that is a multiple of 4."""
    builder.store(value, pointer(builder, address, index, value.type)).align = 4


def call(builder: Any, name: str, result: Any, args: Sequence[Any]) -> Any:
    """Calls an LLVM intrinsic."""
    function_type = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), args)


def fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    """a b + c, in one instruction where there is one."""
    return call(builder, f"llvm.fmuladd.v{a.type.count}f32", a.type, [a, b, c])


def polynomial(builder: Any, x: Any, coefficients: Sequence[float]) -> Any:
    """c0 + x (c1 + x (c2 + ...))."""
    result = constant(coefficients[-1], x.type.count)
    for c in reversed(coefficients[:-1]):
        result = fma(builder, result, x, constant(c, x.type.count))
    return result


def at_least(builder: Any, x: Any, limit: float) -> Any:
    """max(x, limit) that keeps a NaN in x, unlike LLVM's maxnum."""
    limits = constant(limit, x.type.count)
    return builder.select(builder.fcmp_ordered(">", limits, x), limits, x)


def at_most(builder: Any, x: Any, limit: float) -> Any:
    """min(x, limit) that keeps a NaN in x."""
    limits = constant(limit, x.type.count)
    return builder.select(builder.fcmp_ordered("<", limits, x), limits, x)


def masked_bits(builder: Any, operation: str, x: Any, mask: int) -> Any:
    """The bits of x, changed by a bitwise operation with `mask`."""
    count = x.type.count
    bits = getattr(builder, operation)(
        builder.bitcast(x, ints(count)), ir.Constant(ints(count), [mask] * count)
    )
    return builder.bitcast(bits, x.type)


def absolute(builder: Any, x: Any) -> Any:
    """|x|."""
    return masked_bits(builder, "and_", x, 0x7FFFFFFF)


def exp_of_minus_abs(builder: Any, x: Any) -> Any:
    """exp(-|x|)."""
    minus_abs = masked_bits(builder, "or_", x, -0x80000000)
    return exp2(builder, builder.fmul(minus_abs, constant(LOG2_E, x.type.count)))


def sigmoid(builder: Any, x: Any, w: Any, inverse: Any) -> Any:
    """sigmoid(x) from w = exp(-|x|) and 1 / (1 + w); for a NaN both sides are NaN."""
    positive = builder.fcmp_ordered(">", x, constant(0.0, x.type.count))
    return builder.select(positive, inverse, builder.fmul(w, inverse))


def exp2(builder: Any, x: Any) -> Any:
    """2^x."""
    if has_avx512():
        return join(builder, [exp2_avx512(builder, part) for part in split(builder, x)])
    count = x.type.count
    # Adding 1.5 * 2^23 rounds x to an integer, which then stands in the low bits. 2^128 is infinity.
    magic = constant(12582912.0, count)
    x = at_most(builder, at_least(builder, x, -126.0), 128.0)
    shifted = builder.fadd(x, magic)
    fraction = builder.fsub(x, builder.fsub(shifted, magic))
    mantissa = builder.bitcast(polynomial(builder, fraction, EXP2), ints(count))
    exponent = builder.shl(builder.bitcast(shifted, ints(count)), ir.Constant(ints(count), [23] * count))
    return builder.bitcast(builder.add(mantissa, exponent), x.type)


def exp2_avx512(builder: Any, x: Any) -> Any:
    """x - round(x) and a scaling by 2^n are instructions; 0, infinity and NaN come out by themselves."""
    mask, rounding = ir.Constant(ir.IntType(16), -1), ir.Constant(INT32, 4)
    reduce, scale = "llvm.x86.avx512.mask.reduce.ps.512", "llvm.x86.avx512.mask.scalef.ps.512"
    fraction = call(builder, reduce, x.type, [x, ir.Constant(INT32, 0), x, mask, rounding])
    mantissa = polynomial(builder, fraction, EXP2)
    return call(builder, scale, x.type, [mantissa, builder.fsub(x, fraction), mantissa, mask, rounding])


def split(builder: Any, x: Any) -> list[Any]:
    """The vectors of 16 lanes that x consists of."""
    starts = range(0, x.type.count, FOLDED)
    return [builder.shuffle_vector(x, x, lane_numbers(range(s, s + FOLDED))) for s in starts]


def join(builder: Any, parts: list[Any]) -> Any:
    """The vector that `split` has split."""
    while len(parts) > 1:
        lanes = lane_numbers(range(2 * parts[0].type.count))
        parts = [builder.shuffle_vector(a, b, lanes) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def interleave(span: int) -> tuple[ir.Constant, ir.Constant]:
    """Lanes of two rows whose blocks of `2 span` hold partial sums: first and second half of every block."""
    first, second = [], []
    for lane in range(FOLDED):
        block, offset = divmod(lane, 2 * span)
        row = 0 if offset < span else FOLDED
        first.append(row + block * 2 * span + offset % span)
        second.append(first[-1] + span)
    return lane_numbers(first), lane_numbers(second)
