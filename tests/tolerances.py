"""The one table of tolerances: largest error over the largest magnitude of what was expected."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

TOLERANCES = {
    "float64": 1e-12,  # one formula, another order of sums
    "float64 model": 1e-11,  # several layers of it
    "float32": 2e-6,  # one operator against float64
    "float32 model": 2e-5,  # several layers against float64, or two orders of sums
    "float32 gradient of A": 1e-5,  # SPEC.md 1.1, element by element
    "bfloat16": 2**-7,  # a result rounded to 8 bits
}


def assert_close(actual, expected, kind: str, name: str = "value") -> None:
    """Compares tensors, arrays, or nests of them; where zeros are expected, zeros it must be."""
    if isinstance(expected, Mapping):
        assert list(actual) == list(expected), name
        for key in expected:
            assert_close(actual[key], expected[key], kind, f"{name}.{key}")
        return
    if isinstance(expected, Sequence):
        assert len(actual) == len(expected), name
        for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
            assert_close(a, e, kind, f"{name}[{i}]")
        return
    a, e = _float64(actual), _float64(expected)
    assert a.shape == e.shape, f"{name}: {a.shape}, expected {e.shape}"
    assert np.isfinite(e).all(), f"{name}: the expected value is not finite"
    assert np.isfinite(a).all(), f"{name} is not finite"
    if e.size:
        error, scale = np.abs(a - e).max(), np.abs(e).max()
        limit = TOLERANCES[kind] * scale + 1e-30
        assert error <= limit, f"{name}: error {error:.3g} over {scale:.3g}, tolerance {TOLERANCES[kind]:.1g}"


def _float64(value) -> np.ndarray:
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().double().numpy()
    return np.asarray(value, dtype=np.float64)
