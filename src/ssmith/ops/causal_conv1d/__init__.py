"""causal_conv1d: a short depthwise convolution over time that sees the past only."""

from __future__ import annotations

from torch import Tensor

from ssmith.ops.causal_conv1d.reference import causal_conv1d_reference
from ssmith.ops.dispatch import Choice, choose, cpu_refusal, one_token_refusal
from ssmith.ops.shapes import check_documents, check_floating, check_shape

__all__ = ["ACTIVATIONS", "causal_conv1d", "causal_conv1d_backend"]

ACTIVATIONS = (None, "silu")
WIDEST_KERNEL = 33  # a chunk of 32 steps must hold all that reaches into the next


def causal_conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    initial_state: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Depthwise causal convolution: y_t = act(sum_k weight[:, k] x_{t - K + 1 + k} + bias).

    Args:
        x: (batch, time, channels).
        weight: (channels, kernel width K), the last tap on the current token (PyTorch's order).
        bias: (channels,).
        activation: None or `silu`.
        initial_state: (batch, channels, K - 1), the inputs before the first, oldest first, or one row per
            document with `cu_seqlens`; zeros if None.
        cu_seqlens: int32 (documents + 1,), borders of documents packed in one row (batch 1).
        backend: `auto`, `cpu` or `reference`.

    Returns:
        y, of x's shape and dtype, and the final state: the last K - 1 inputs of each sequence, of x's dtype.
        Gradients flow to every tensor, from both results.

    Raises:
        ValueError: a shape that does not fit, no time step, an unknown activation, or a backend that cannot
            serve the call.

    Source: Gu and Dao, arXiv 2312.00752, section 3.4 (the convolution before the SSM).
    """
    op = "causal_conv1d"
    if x.dim() != 3 or weight.dim() != 2:
        raise ValueError(
            f"{op}: x must be (B, T, C) and weight (C, K), got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    batch, time, channels = x.shape
    if x.numel() == 0 or weight.numel() == 0:
        raise ValueError(f"{op}: x and weight must not be empty, got {tuple(x.shape)}, {tuple(weight.shape)}")
    check_shape(op, "weight", weight, (channels, weight.shape[1]), "(C, K)")
    check_shape(op, "bias", bias, (channels,), "(C,)")
    check_documents(op, cu_seqlens, batch, time)
    rows = batch if cu_seqlens is None else cu_seqlens.numel() - 1
    check_shape(op, "initial_state", initial_state, (rows, channels, weight.shape[1] - 1), "(B, C, K - 1)")
    check_floating(op, x=x, weight=weight, bias=bias, initial_state=initial_state)
    if activation not in ACTIVATIONS:
        raise ValueError(f"{op}: unknown activation {activation!r}; choose None or 'silu'")
    served_by = causal_conv1d_backend(x, weight, bias, initial_state, backend=backend)
    run = causal_conv1d_reference
    if served_by.backend == "cpu":
        from ssmith.ops.causal_conv1d.cpu import causal_conv1d_cpu

        run = causal_conv1d_cpu
    return run(x, weight, bias, activation=activation, initial_state=initial_state, cu_seqlens=cu_seqlens)


def causal_conv1d_backend(x: Tensor, weight: Tensor, *others: Tensor | None, backend: str = "auto") -> Choice:
    """Which backend `causal_conv1d` takes for these inputs, and why."""
    refusal = cpu_refusal(x, weight, *others)
    if refusal is None and weight.shape[1] > WIDEST_KERNEL:
        refusal = f"the kernel is {weight.shape[1]} wide, the compiled one reaches {WIDEST_KERNEL}"
    if refusal is None and backend == "auto":
        refusal = one_token_refusal(x.shape[1], x, weight, *others)
    return choose("causal_conv1d", backend, {"cpu": refusal, "reference": None})
