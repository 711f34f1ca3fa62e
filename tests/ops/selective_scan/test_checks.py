"""What selective_scan refuses, in which words, and which backend it takes."""

import pytest
import torch

from ssmith.ops import dispatch, selective_scan
from ssmith.ops.selective_scan import selective_scan_backend


def arguments(dtype=torch.float32):
    shapes = {"u": (2, 4, 3), "delta": (2, 4, 3), "A": (3, 5), "B": (2, 4, 5), "C": (2, 4, 5)}
    return {name: torch.full(shape, 0.5, dtype=dtype) for name, shape in shapes.items()}


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"u": torch.ones(4, 3)}, r"u must be \(B, T, I\) and A \(I, N\), got \(4, 3\) and \(3, 5\)"),
        ({"A": torch.ones(3)}, r"u must be \(B, T, I\) and A \(I, N\), got \(2, 4, 3\) and \(3,\)"),
        ({"u": torch.ones(2, 0, 3)}, r"there must be at least one row .* step, got u of \(2, 0, 3\)"),
        ({"u": torch.ones(0, 4, 3)}, r"there must be at least one row .* step, got u of \(0, 4, 3\)"),
        ({"A": torch.ones(4, 5)}, r"A must be \(I, N\) = \(3, 5\), got \(4, 5\)"),
        ({"delta": torch.ones(2, 4, 1)}, r"delta must be \(B, T, I\) = \(2, 4, 3\), got \(2, 4, 1\)"),
        ({"z": torch.ones(2, 3, 3)}, r"z must be \(B, T, I\) = \(2, 4, 3\), got \(2, 3, 3\)"),
        ({"B": torch.ones(2, 4, 3)}, r"B must be \(B, T, N\) = \(2, 4, 5\), got \(2, 4, 3\)"),
        ({"C": torch.ones(1, 4, 5)}, r"C must be \(B, T, N\) = \(2, 4, 5\), got \(1, 4, 5\)"),
        ({"D": torch.ones(3, 1)}, r"D must be \(I,\) = \(3,\), got \(3, 1\)"),
        ({"delta_bias": torch.ones(5)}, r"delta_bias must be \(I,\) = \(3,\), got \(5,\)"),
        ({"initial_state": torch.ones(1, 3, 5)}, r"initial_state must be .* = \(2, 3, 5\), got \(1, 3, 5\)"),
        ({"discretization": "bilinear"}, r"unknown discretization 'bilinear'; choose euler or zoh"),
        ({"backend": "cuda"}, r"unknown backend 'cuda'; choose one of auto, cpu, reference"),
        ({"cu_seqlens": int32(0, 4)}, r"with cu_seqlens the batch size must be 1 .*, got 2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(changes, message):
    with pytest.raises(ValueError, match=f"^selective_scan: {message}"):
        selective_scan(**{**arguments(), **changes})


@pytest.mark.parametrize(
    "cu_seqlens, message",
    [
        (torch.tensor([0, 4]), r"must be int32 of shape \(documents \+ 1,\), got torch.int64 \(2,\)"),
        (int32(0), r"must be int32 of shape .*, got torch.int32 \(1,\)"),
        (int32(0, 4)[None], r"must be int32 of shape .*, got torch.int32 \(1, 2\)"),
        (int32(1, 4), r"must go from 0 to T = 4, got 1 to 4"),
        (int32(0, 3), r"must go from 0 to T = 4, got 0 to 3"),
        (int32(0, 2, 2, 4), r"must rise strictly \(no empty document\), got \[0, 2, 2, 4\]"),
        (int32(0, 3, 1, 4), r"must rise strictly \(no empty document\), got \[0, 3, 1, 4\]"),
    ],
)
def test_borders_that_do_not_fit_are_named(cu_seqlens, message):
    a = {n: x if n == "A" else x[:1] for n, x in arguments().items()}
    with pytest.raises(ValueError, match=f"^selective_scan: cu_seqlens {message}"):
        selective_scan(**a, cu_seqlens=cu_seqlens)


def test_a_state_per_document_is_expected_with_documents():
    a = {n: x if n == "A" else x[:1] for n, x in arguments().items()}
    with pytest.raises(ValueError, match=r"initial_state must be .* = \(2, 3, 5\), got \(1, 3, 5\)"):
        selective_scan(**a, cu_seqlens=int32(0, 1, 4), initial_state=torch.zeros(1, 3, 5))


def test_integers_are_refused():
    with pytest.raises(TypeError, match=r"^selective_scan: B must be floating point, got torch.int64"):
        selective_scan(**{**arguments(), "B": torch.ones(2, 4, 5, dtype=torch.int64)})


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_cpu_backend_by_name_refuses_a_dtype_it_has_no_kernel_for(dtype):
    name = str(dtype).removeprefix("torch.")
    reason = f"the dtype is {name}, kernels exist for float32"
    a = arguments(dtype)
    with pytest.raises(ValueError, match=f"selective_scan: backend 'cpu' cannot serve this call: {reason}"):
        selective_scan(**a, backend="cpu")
    assert selective_scan_backend(*a.values()) == ("reference", f"cpu: {reason}")


def test_one_argument_of_another_dtype_is_reason_enough():
    a = arguments() | {"C": arguments()["C"].double()}
    with pytest.raises(ValueError, match="the dtype is float64"):
        selective_scan(**a, backend="cpu")


def test_the_cpu_backend_serves_float32():
    a = arguments()
    assert selective_scan_backend(*a.values()) == ("cpu", "the fastest here")
    assert selective_scan_backend(*a.values(), backend="reference") == ("reference", "asked for by name")


def test_one_token_without_gradient_is_served_by_the_reference():
    a = {n: x if n == "A" else x[:, :1] for n, x in arguments().items()}
    choice = selective_scan_backend(*a.values())
    assert choice.backend == "reference"
    assert "one token without gradient" in choice.why
    a["u"].requires_grad_()
    assert selective_scan_backend(*a.values()).backend == "cpu"
    assert selective_scan_backend(*a.values(), backend="cpu").backend == "cpu"


def test_without_numba_the_choice_says_so(monkeypatch):
    a = arguments()
    monkeypatch.setattr(dispatch, "NUMBA_MISSING", "numba is not installed")
    assert selective_scan_backend(*a.values()) == ("reference", "cpu: numba is not installed")
    with pytest.raises(ValueError, match="numba is not installed"):
        selective_scan(**a, backend="cpu")
