"""Vectors inside Numba functions, at several widths: memory, arithmetic, functions against float64."""

import logging
import os
import subprocess
import sys

import numba
import numpy as np
import pytest

from ssmith.ops.simd import kernel, lowering, vectors
from ssmith.ops.simd.kernel import aligned_floats, host_lanes
from ssmith.ops.simd.vectors import (
    Lanes,
    broadcast,
    exp2,
    fold,
    get,
    load,
    load_first,
    phi1,
    put,
    row_sums,
    sigmoid,
    softplus,
    store,
    store_first,
    width,
)

WIDTHS = (16, 64)
SPECIAL = [0.0, -0.0, 1e-30, -1e-30, 0.5, -0.5, 1.0, -1.0, 87.0, -87.0, -200.0, 200.0, -1e30, 1e30, np.nan]


@numba.njit
def apply_all(lanes, x, size, out):
    for i in range(0, size, width(lanes)):
        v = load(lanes, x, i)
        plus, slope = softplus(v)
        phi, phi_slope = phi1(v, exp2(v * broadcast(lanes, np.float32(1.4426950408889634))))
        store(out, i, exp2(v))
        store(out, size + i, sigmoid(v))
        store(out, 2 * size + i, plus)
        store(out, 3 * size + i, slope)
        store(out, 4 * size + i, phi)
        store(out, 5 * size + i, phi_slope)


@numba.njit
def combine(lanes, a, b, out):
    x, y = load(lanes, a, 0), load(lanes, b, 0)
    store(out, 0, x + y)
    store(out, width(lanes), x - y)
    store(out, 2 * width(lanes), x * y)
    store(out, 3 * width(lanes), x / y)


@numba.njit
def copy_first(lanes, source, target, count):
    store_first(target, 0, load_first(lanes, source, 0, count), count)


@numba.njit
def load_padded(lanes, source, target, count):
    store(target, 0, load_first(lanes, source, 0, count))


@numba.njit
def reduce(lanes, x, folded, sums):
    store(folded, 0, fold(load(lanes, x, 0)))
    store(sums, 0, row_sums(x))


@numba.njit
def shift(x, y):
    put(y, 1, get(x, 2) + np.float32(1.0))


def inputs(size):
    rng = np.random.default_rng(size)
    x = np.concatenate([SPECIAL, rng.standard_normal(size // 2), 20 * rng.standard_normal(size)])[:size]
    return x.astype(np.float32)


def evaluate(lanes, x):
    out = np.full((6, x.size), np.nan, np.float32)
    apply_all(lanes, x.ctypes.data, x.size, out.ctypes.data)
    return dict(zip(("exp2", "sigmoid", "softplus", "slope", "phi1", "phi1_slope"), out, strict=True))


def expected(x):
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        e, minus = np.exp(x), np.exp(-np.abs(x))
        s = np.where(x >= 0, 1 / (1 + minus), minus / (1 + minus))
        small = np.abs(x) < 1e-3
        phi = np.where(small, 1 + x / 2 + x * x / 6, np.expm1(x) / x)
        slope = np.where(small, 0.5 + x / 3 + x * x / 8, (e - phi) / x)
        return {"exp2": 2**x, "sigmoid": s, "softplus": np.maximum(x, 0) + np.log1p(minus), "slope": s,
                "phi1": phi, "phi1_slope": slope}  # fmt: skip


@pytest.mark.parametrize("lanes", WIDTHS)
def test_functions_against_float64(lanes):
    x = inputs(4096)
    actual = evaluate(Lanes(lanes), x)
    for name, e in expected(x).items():
        a = actual[name].astype(np.float64)
        overflows = x > 80  # phi1' is a difference of infinities then
        assert (np.isnan(a) == np.isnan(e))[~overflows].all(), name
        assert name != "exp2" or np.isinf(a[e > 1e39]).all()
        finite = np.isfinite(e) & (np.abs(e) < 1e37)
        at, a, e = x[finite], a[finite], e[finite]
        # exp(x) inherits the rounding of x log2(e); below the smallest normal number a result may be 0
        relative = 4e-7 if name == "exp2" else 8e-7 + 1.5e-7 * np.abs(at)
        wrong = np.abs(a - e) > relative * np.abs(e) + 2e-38
        assert not wrong.any(), (name, at[wrong][:5], a[wrong][:5], e[wrong][:5])


@pytest.mark.skipif(not lowering.has_avx512(), reason="the tests above have run without AVX-512")
def test_functions_without_avx512():
    features = [f"-{f[1:]}" if f.startswith("+avx512") else f for f in lowering.host_features().split(",")]
    environment = os.environ | {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ",".join(features)}
    tests = f"{__file__}::test_functions_against_float64", f"{__file__}::test_exp2_of_zero_is_one"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("lanes", WIDTHS)
def test_exp2_of_zero_is_one(lanes):
    x = np.zeros(64, np.float32)
    x[1:] = -np.geomspace(1e-8, 1e-2, 63)
    actual = evaluate(Lanes(lanes), x)["exp2"]
    assert actual[0] == 1.0
    # no bias near 1: a state that is kept for thousands of steps multiplies it up
    assert np.abs(actual - 2.0 ** x.astype(np.float64)).max() <= 2**-24.5


@pytest.mark.parametrize("lanes", WIDTHS)
def test_a_nan_in_one_lane_leaves_the_others(lanes):
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    clean = evaluate(Lanes(lanes), x)
    x[5] = np.nan
    for name, a in evaluate(Lanes(lanes), x).items():
        assert np.isnan(a[5]), name
        assert (np.delete(a, 5) == np.delete(clean[name], 5)).all(), name


@pytest.mark.parametrize("lanes", WIDTHS)
def test_arithmetic_is_float32_arithmetic(lanes):
    rng = np.random.default_rng(lanes)
    a, b = rng.standard_normal((2, lanes)).astype(np.float32)
    out = np.empty((4, lanes), np.float32)
    combine(Lanes(lanes), a.ctypes.data, b.ctypes.data, out.ctypes.data)
    assert (out == np.stack([a + b, a - b, a * b, a / b])).all()


@pytest.mark.parametrize("lanes", WIDTHS)
@pytest.mark.parametrize("count", [1, 3, 15, 16])
def test_the_first_lanes_only(lanes, count):
    for here in (count, lanes - 1, lanes):
        source = np.arange(1, lanes + 1, dtype=np.float32)
        target = np.full(lanes + 1, -1, np.float32)
        copy_first(Lanes(lanes), source.ctypes.data, target.ctypes.data, here)
        assert (target[:here] == source[:here]).all()
        assert (target[here:] == -1).all()
        load_padded(Lanes(lanes), source.ctypes.data, target.ctypes.data, here)
        assert (target[:here] == source[:here]).all()
        assert (target[here:lanes] == 0).all()
        assert target[lanes] == -1


@pytest.mark.parametrize("lanes", [16, 32, 64, 128])
def test_sums_over_lanes(lanes):
    x = np.random.default_rng(lanes).standard_normal(256).astype(np.float32)
    folded, sums = np.empty(16, np.float32), np.empty(16, np.float32)
    reduce(Lanes(lanes), x.ctypes.data, folded.ctypes.data, sums.ctypes.data)
    np.testing.assert_allclose(folded, x[:lanes].reshape(-1, 16).sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sums, x.reshape(16, 16).sum(1), rtol=1e-5, atol=1e-6)


def test_single_numbers():
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    shift(x.ctypes.data, y.ctypes.data)
    assert y.tolist() == [0, 3, 0, 0]


@pytest.mark.parametrize("lanes", [0, 8, 48])
def test_a_width_that_cannot_be_halved_to_16_is_refused(lanes):
    with pytest.raises(ValueError, match=f"a vector has 16 lanes, or 32, 64, ..., got {lanes}"):
        Lanes(lanes)


def test_scratch_memory_begins_on_a_cache_line():
    for count in (1, 7, 1000):
        memory = aligned_floats(count)
        assert memory.size == count
        assert memory.ctypes.data % 64 == 0


def test_lanes_tell_the_cache_about_width_and_sources(tmp_path):
    source = tmp_path / "kernel.py"
    source.write_text("first")
    a, same = host_lanes(str(source)), host_lanes(str(source))
    source.write_text("second")
    changed = host_lanes(str(source))
    assert numba.typeof(a) == numba.typeof(same)
    assert numba.typeof(a) != numba.typeof(changed)
    assert numba.typeof(Lanes(16)) != numba.typeof(Lanes(32))
    assert a.width == vectors.host_width()


def test_compilation_is_announced_once(caplog, monkeypatch):
    monkeypatch.setattr(kernel, "_ANNOUNCEMENT", kernel._Announcement())
    first, second = (numba.njit(lambda lanes, x: x + 1) for _ in range(2))
    with caplog.at_level(logging.INFO, "ssmith"):
        kernel.prepare(first, Lanes(16), 1)
        kernel.prepare(first, Lanes(16), 1)
        kernel.prepare(second, Lanes(16), 1)
    assert [r.getMessage() for r in caplog.records] == ["compiling CPU kernels, once per machine ..."]
    assert first(Lanes(16), 1) == 2
