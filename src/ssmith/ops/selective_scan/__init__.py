"""selective_scan: the state-space recurrence of Mamba-1. README.md beside this file holds the mathematics."""

from __future__ import annotations

from torch import Tensor

from ssmith.ops.dispatch import Choice, choose, cpu_refusal, one_token_refusal
from ssmith.ops.selective_scan.reference import selective_scan_reference
from ssmith.ops.shapes import check_documents, check_floating, check_shape

__all__ = ["DISCRETIZATIONS", "selective_scan", "selective_scan_backend"]

DISCRETIZATIONS = ("euler", "zoh")


def selective_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    *,
    delta_softplus: bool = True,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    discretization: str = "euler",
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """The selective state-space scan of Mamba-1 (S6).

    dt = softplus(delta + delta_bias); h_t = exp(dt A) h_{t-1} + b_t u_t; y_t = C_t h_t + D u_t, times
    silu(z_t) where z is given. `euler` (what published Mamba-1 checkpoints mean) has b = dt B; `zoh` has
    b = dt phi1(dt A) B with phi1(x) = (exp(x) - 1) / x.

    Args:
        u, delta, z: (batch, time, inner width).
        A: (inner width, state size), negative. B, C: (batch, time, state size).
        D, delta_bias: (inner width,).
        delta_softplus: whether softplus is applied to delta + delta_bias.
        initial_state: (batch, inner width, state size), or one per document with `cu_seqlens`; zeros if None.
        cu_seqlens: int32 (documents + 1,), borders of documents packed in one row (batch 1). None: each row
            is one sequence.
        backend: `auto`, `cpu` or `reference`.

    Returns:
        y, of u's shape and dtype, and the final state, float32 (float64 when an input is), of the initial
        state's shape. Gradients flow to every tensor, from both results.

    Precision: dt, exp(dt A), the state and all sums are float32, or float64 when an input is.

    Raises:
        ValueError: a shape that does not fit, no time step at all, an unknown discretization, or a backend
            that cannot serve the call.

    Source: Gu and Dao, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces", arXiv 2312.00752,
    equations 2 and 4, algorithm 2.
    """
    _check(u, delta, A, B, C, D, z, delta_bias, initial_state, cu_seqlens, discretization)
    served_by = selective_scan_backend(u, delta, A, B, C, D, z, delta_bias, initial_state, backend=backend)
    run = selective_scan_reference
    if served_by.backend == "cpu":
        from ssmith.ops.selective_scan.cpu import selective_scan_cpu

        run = selective_scan_cpu
    return run(
        u, delta, A, B, C, D, z, delta_bias,
        delta_softplus=delta_softplus, initial_state=initial_state, cu_seqlens=cu_seqlens,
        discretization=discretization,
    )  # fmt: skip


def selective_scan_backend(u: Tensor, *others: Tensor | None, backend: str = "auto") -> Choice:
    """Which backend `selective_scan` takes for these inputs, and why."""
    refusal = cpu_refusal(u, *others)
    if refusal is None and backend == "auto":
        refusal = one_token_refusal(u.shape[1], u, *others)
    return choose("selective_scan", backend, {"cpu": refusal, "reference": None})


def _check(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    discretization: str,
) -> None:
    op = "selective_scan"
    if u.dim() != 3 or A.dim() != 2:
        raise ValueError(f"{op}: u must be (B, T, I) and A (I, N), got {tuple(u.shape)} and {tuple(A.shape)}")
    batch, time, inner = u.shape
    if u.numel() == 0:
        raise ValueError(f"{op}: there must be at least one row and one time step, got u of {tuple(u.shape)}")
    state_size = A.shape[1]
    check_shape(op, "A", A, (inner, state_size), "(I, N)")
    check_shape(op, "delta", delta, (batch, time, inner), "(B, T, I)")
    check_shape(op, "z", z, (batch, time, inner), "(B, T, I)")
    check_shape(op, "B", B, (batch, time, state_size), "(B, T, N)")
    check_shape(op, "C", C, (batch, time, state_size), "(B, T, N)")
    check_shape(op, "D", D, (inner,), "(I,)")
    check_shape(op, "delta_bias", delta_bias, (inner,), "(I,)")
    check_documents(op, cu_seqlens, batch, time)
    rows = batch if cu_seqlens is None else cu_seqlens.numel() - 1
    check_shape(op, "initial_state", initial_state, (rows, inner, state_size), "(B or documents, I, N)")
    check_floating(op, u=u, delta=delta, A=A, B=B, C=C, D=D, z=z, delta_bias=delta_bias, state=initial_state)
    if discretization not in DISCRETIZATIONS:
        raise ValueError(f"{op}: unknown discretization {discretization!r}; choose euler or zoh")
