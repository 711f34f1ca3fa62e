"""rms_norm: root mean square normalisation, plain, gated, over groups of channels."""

from __future__ import annotations

from torch import Tensor

from ssmith.ops.dispatch import Choice, choose, cpu_refusal, one_token_refusal
from ssmith.ops.rms_norm.reference import rms_norm_reference
from ssmith.ops.shapes import check_floating, check_shape

__all__ = ["rms_norm", "rms_norm_backend"]


def rms_norm(
    x: Tensor,
    weight: Tensor | None,
    *,
    eps: float = 1e-5,
    z: Tensor | None = None,
    norm_before_gate: bool = False,
    group_size: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """y = x / sqrt(mean(x^2) + eps) * weight, over the last dimension.

    Args:
        x: (..., channels).
        weight: (channels,), or None for none.
        eps: added to the mean square.
        z: a gate of x's shape: the result is norm(x silu(z)), or norm(x) silu(z) with `norm_before_gate`.
        group_size: channels that are normalised together; must divide the channels; None: all of them.
        backend: `auto`, `cpu` or `reference`.

    Returns:
        y, of x's shape and dtype. Sums are float32, or float64 when an input is.

    Raises:
        ValueError: a shape or group size that does not fit, or a backend that cannot serve the call.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467, equation 4; gated as
    in Dao and Gu, arXiv 2405.21060, section 7.
    """
    op = "rms_norm"
    if x.dim() == 0 or x.numel() == 0:
        raise ValueError(f"{op}: x must have channels and not be empty, got {tuple(x.shape)}")
    channels = x.shape[-1]
    check_shape(op, "weight", weight, (channels,), "(channels,)")
    check_shape(op, "z", z, tuple(x.shape), "x's shape")
    check_floating(op, x=x, weight=weight, z=z)
    if group_size is not None and (group_size < 1 or channels % group_size):
        raise ValueError(f"{op}: group_size {group_size} must divide the {channels} channels")
    served_by = rms_norm_backend(x, weight, z, group_size, backend=backend)
    if served_by.backend == "cpu":
        from ssmith.ops.rms_norm.cpu import rms_norm_cpu

        return rms_norm_cpu(x, weight, eps=eps)
    return rms_norm_reference(
        x, weight, eps=eps, z=z, norm_before_gate=norm_before_gate, group_size=group_size
    )


def rms_norm_backend(
    x: Tensor,
    weight: Tensor | None = None,
    z: Tensor | None = None,
    group_size: int | None = None,
    *,
    backend: str = "auto",
) -> Choice:
    """Which backend `rms_norm` takes for these inputs, and why."""
    refusal = cpu_refusal(x, weight)
    if refusal is None and (z is not None or group_size not in (None, x.shape[-1])):
        refusal = "gated and grouped norms have no kernel yet"
    if refusal is None and backend == "auto":
        refusal = one_token_refusal(x.shape[-2] if x.dim() > 1 else 1, x, weight)
    return choose("rms_norm", backend, {"cpu": refusal, "reference": None})
