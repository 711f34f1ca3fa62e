import numpy as np
import pytest
import torch

from ssmith.ops import rms_norm
from tests.tolerances import assert_close


def numpy_norm(x, weight=None, eps=1e-5, z=None, norm_before_gate=False, group_size=None):
    x = x.detach().double().numpy()
    gate = 1.0
    if z is not None:
        z = z.detach().double().numpy()
        gate = z / (1 + np.exp(-z))
    y = x if norm_before_gate else x * gate
    size = group_size or x.shape[-1]
    out = np.empty_like(y)
    for start in range(0, x.shape[-1], size):
        group = y[..., start : start + size]
        out[..., start : start + size] = group / np.sqrt((group**2).mean(-1, keepdims=True) + eps)
    if weight is not None:
        out = out * weight.detach().double().numpy()
    return out * gate if norm_before_gate else out


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("gate", [None, "after", "before"])
@pytest.mark.parametrize("shape, group_size", [((2, 3, 6), None), ((6,), 2), ((1, 63), 21), ((3, 1), 1)])
def test_equals_numpy(shape, group_size, gate, weighted):
    x = torch.randn(shape, dtype=torch.float64)
    options = {"eps": 0.1, "group_size": group_size, "norm_before_gate": gate == "after"}
    if gate:
        options["z"] = torch.randn(shape, dtype=torch.float64)
    weight = torch.randn(shape[-1], dtype=torch.float64) if weighted else None
    assert_close(rms_norm(x, weight, **options), numpy_norm(x, weight, **options), "float64")


def test_equals_pytorchs():
    x, weight = torch.randn(3, 7, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    assert_close(rms_norm(x, weight), torch.nn.functional.rms_norm(x, (7,), weight, 1e-5), "float64")


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("gate", [None, "after", "before"])
@pytest.mark.parametrize("group_size", [None, 2])
def test_every_gradient_by_finite_differences(group_size, gate, weighted):
    tensors = [torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)]
    if weighted:
        tensors.append(torch.randn(4, dtype=torch.float64, requires_grad=True))
    if gate:
        tensors.append(torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True))

    def run(x, *rest):
        weight, z = rest[0] if weighted else None, rest[-1] if gate else None
        return rms_norm(x, weight, z=z, norm_before_gate=gate == "after", group_size=group_size, eps=1e-3)

    assert torch.autograd.gradcheck(run, tuple(tensors), eps=1e-6, atol=1e-8, rtol=1e-6)


def test_a_row_of_zeros_gives_zeros_and_a_finite_gradient():
    x = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    y = rms_norm(x, None, eps=1e-4)
    assert torch.equal(y, torch.zeros(2, 3, dtype=torch.float64))
    (grad,) = torch.autograd.grad(y.sum(), x)
    np.testing.assert_allclose(grad.numpy(), 100.0, rtol=1e-12)


def test_bfloat16_sums_in_float32():
    x, weight = torch.randn(3, 63).bfloat16(), torch.randn(63).bfloat16()
    y = rms_norm(x, weight)
    assert y.dtype == torch.bfloat16
    assert_close(y, numpy_norm(x, weight), "bfloat16")
    assert torch.equal(y, rms_norm(x.float(), weight.float()).bfloat16())


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("shape", [(2, 5, 63), (1, 1), (3,), (70, 17), (2, 3, 2, 8)])
def test_float32_against_float64(shape, weighted, backend):
    """Value and gradients; x is one half of wider rows."""
    wide = [torch.randn(shape, dtype=torch.float64), torch.randn(shape[-1], dtype=torch.float64)]
    upstream = torch.randn(shape, dtype=torch.float64)
    results = []
    for dtype, name in ((torch.float32, backend), (torch.float64, "reference")):
        x, weight = (t.to(dtype).requires_grad_() for t in wide)
        half = torch.cat([x, x], -1).chunk(2, -1)[1]
        y = rms_norm(half, weight if weighted else None, eps=1.0, backend=name)
        wanted = [x, weight] if weighted else [x]
        results.append((y, *torch.autograd.grad(y, wanted, upstream.to(dtype))))
    assert_close(results[0], results[1], "float32")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"x": torch.ones(())}, r"x must have channels and not be empty, got \(\)"),
        ({"x": torch.ones(2, 0)}, r"x must have channels and not be empty, got \(2, 0\)"),
        ({"weight": torch.ones(2)}, r"weight must be \(channels,\) = \(6,\), got \(2,\)"),
        ({"z": torch.ones(6)}, r"z must be x's shape = \(2, 6\), got \(6,\)"),
        ({"group_size": 4}, r"group_size 4 must divide the 6 channels"),
        ({"group_size": 0}, r"group_size 0 must divide the 6 channels"),
        (
            {"x": torch.ones(2, 6).double(), "backend": "cpu"},
            r"backend 'cpu' cannot serve this call: .*float64",
        ),
        ({"group_size": 2, "backend": "cpu"}, r"backend 'cpu' cannot serve this call: "),
        ({"z": torch.ones(2, 6), "backend": "cpu"}, r"backend 'cpu' cannot serve this call: "),
        ({"backend": "gpu"}, r"unknown backend 'gpu'"),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    fits = {"x": torch.ones(2, 6), "weight": None}
    with pytest.raises(ValueError, match=f"^rms_norm: {message}"):
        rms_norm(**{**fits, **changes})


def test_integers_are_refused():
    with pytest.raises(TypeError, match=r"^rms_norm: x must be floating point, got torch.int64"):
        rms_norm(torch.ones(2, 6, dtype=torch.int64), None)
