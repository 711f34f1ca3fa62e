"""Backends are compared with the float64 reference, and one that cannot run says why."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ssmith.models.blocks.mamba1 as mamba1
from ssmith.models import HybridLM
from ssmith.ops import dispatch
from ssmith.verification.backends import backend_rows
from ssmith.verification.report import VerifyRow
from ssmith.verification.subject import borrowed


def rows_of(model: HybridLM, backend: str) -> list[VerifyRow]:
    with borrowed(model, 0) as subject:
        return list(backend_rows(subject, backend))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_every_parameter_is_compared(everything: HybridLM, backend: str) -> None:
    rows = rows_of(everything, backend)
    assert all(r.ok for r in rows), rows
    names = [r.name for r in rows]
    assert names[0] == "loss"
    assert set(names) >= {n for n, _ in everything.named_parameters()}
    assert "Mamba1" in rows[0].detail


def test_a_kernel_that_is_wrong_is_caught(plain: HybridLM, monkeypatch: pytest.MonkeyPatch) -> None:
    right = mamba1.selective_scan

    def wrong(*args: Any, **options: Any) -> Any:
        y, state = right(*args, **options)
        if y.dtype == torch.float32 and y.requires_grad:
            y = y + 3e-4 * (y - y.detach())  # the value is right, the gradient is not
        return y, state

    monkeypatch.setattr(mamba1, "selective_scan", wrong)
    failed = {r.name for r in rows_of(plain, "reference") if not r.ok}
    assert failed >= {f"layers.{i}.mixer.{n}" for i in (0, 1) for n in ("A_log", "D", "x_proj.weight")}
    assert "packed documents: gradients" in failed
    assert not failed & {"loss", "layers.1.mixer.out_proj.weight", "final_norm.weight"}


def test_a_backend_that_cannot_run_says_why(plain: HybridLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "NUMBA_MISSING", "numba is not installed")
    (row,) = rows_of(plain, "cpu")
    assert row.ok
    assert row.name == "not run"
    assert "numba is not installed" in row.detail
    assert {m.backend for m in plain.modules() if hasattr(m, "backend")} == {"auto"}  # pyright: ignore
