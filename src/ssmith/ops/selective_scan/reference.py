"""selective_scan, the specification: a loop over time, in any floating dtype, on any device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ssmith.ops.shapes import at_least_float32, documents


def selective_scan_reference(
    u_BTI: Tensor,
    delta_BTI: Tensor,
    A_IN: Tensor,
    B_BTN: Tensor,
    C_BTN: Tensor,
    D_I: Tensor | None,
    z_BTI: Tensor | None,
    delta_bias_I: Tensor | None,
    *,
    delta_softplus: bool,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    discretization: str,
) -> tuple[Tensor, Tensor]:
    """See `ssmith.ops.selective_scan`. States and sums are float32, or float64 when an input is."""
    wide = at_least_float32(u_BTI, delta_BTI, A_IN, B_BTN, C_BTN, D_I, z_BTI, delta_bias_I, initial_state)
    batch, time, _ = u_BTI.shape
    u, dt, A, B, C = (x.to(wide) for x in (u_BTI, delta_BTI, A_IN, B_BTN, C_BTN))
    if delta_bias_I is not None:
        dt = dt + delta_bias_I.to(wide)
    if delta_softplus:
        dt = F.softplus(dt, threshold=40.0)  # torch's own threshold of 20 is 2e-9 off, float64 sees it
    outputs, states = [], []
    for i, (rows, times) in enumerate(documents(cu_seqlens, batch, time)):
        if initial_state is None:
            h = u.new_zeros(rows.stop, *A.shape)
        else:
            h = initial_state.to(wide) if cu_seqlens is None else initial_state[i : i + 1].to(wide)
        y, h = _scan(u[:, times], dt[:, times], A, B[:, times], C[:, times], h, discretization)
        outputs.append(y)
        states.append(h)
    y = torch.cat(outputs, 1)
    if D_I is not None:
        y = y + D_I.to(wide) * u
    if z_BTI is not None:
        y = y * F.silu(z_BTI.to(wide))
    return y.to(u_BTI.dtype), torch.cat(states, 0)


def _scan(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, h: Tensor, discretization: str
) -> tuple[Tensor, Tensor]:
    outputs = []
    # unbind, not indexing: the backward of an index writes a whole zero tensor per step
    for u_t, dt_t, B_t, C_t in zip(u.unbind(1), dt.unbind(1), B.unbind(1), C.unbind(1), strict=True):
        dt_A = dt_t[..., None] * A
        weight = dt_t if discretization == "euler" else dt_t[..., None] * phi1(dt_A)
        inject = (weight * u_t)[..., None] if discretization == "euler" else weight * u_t[..., None]
        h = torch.exp(dt_A) * h + inject * B_t[:, None, :]
        outputs.append((h * C_t[:, None, :]).sum(-1))
    return torch.stack(outputs, 1), h


def phi1(x: Tensor) -> Tensor:
    """(exp(x) - 1) / x, exact in value and derivative for small x, where a series stands in.

    The quotient's own derivative subtracts nearly equal numbers: in float32 at x = 1e-4 nothing is left.
    """
    small = x.abs() < 0.5
    near, far = torch.where(small, x, 0.0), torch.where(small, 1.0, x)
    series = torch.ones_like(near)
    for k in range(16, 1, -1):  # 0.5^16 / 17! < 1e-19
        series = 1.0 + series * near / k
    return torch.where(small, series, torch.expm1(far) / far)
