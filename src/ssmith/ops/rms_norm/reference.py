"""rms_norm, the specification."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ssmith.ops.shapes import at_least_float32


def rms_norm_reference(
    x: Tensor,
    weight: Tensor | None,
    *,
    eps: float,
    z: Tensor | None,
    norm_before_gate: bool,
    group_size: int | None,
) -> Tensor:
    """See `ssmith.ops.rms_norm`."""
    wide = at_least_float32(x, weight, z)
    y = x.to(wide)
    if z is not None and not norm_before_gate:
        y = y * F.silu(z.to(wide))
    groups = y.unflatten(-1, (-1, group_size or y.shape[-1]))
    y = (groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)).flatten(-2)
    if weight is not None:
        y = y * weight.to(wide)
    if z is not None and norm_before_gate:
        y = y * F.silu(z.to(wide))
    return y.to(x.dtype)
