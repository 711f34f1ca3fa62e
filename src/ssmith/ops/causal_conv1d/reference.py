"""causal_conv1d, the specification: the sum over taps, written out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ssmith.ops.shapes import at_least_float32, documents


def causal_conv1d_reference(
    x_BTC: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    *,
    activation: str | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """See `ssmith.ops.causal_conv1d`. Sums are float32, or float64 when an input is."""
    wide = at_least_float32(x_BTC, weight_CK, bias_C)
    batch, time, channels = x_BTC.shape
    kernel = weight_CK.shape[1]
    outputs, states = [], []
    for i, (rows, times) in enumerate(documents(cu_seqlens, batch, time)):
        if initial_state is None:
            before = x_BTC.new_zeros(rows.stop, kernel - 1, channels)
        else:
            given = initial_state if cu_seqlens is None else initial_state[i : i + 1]
            before = given.transpose(1, 2).to(x_BTC.dtype)
        padded = torch.cat([before, x_BTC[:, times]], 1)
        length = times.stop - times.start
        y = sum(padded[:, k : k + length].to(wide) * weight_CK[:, k].to(wide) for k in range(kernel))
        outputs.append(y)
        states.append(padded[:, length:].transpose(1, 2))
    y = torch.cat(outputs, 1)
    if bias_C is not None:
        y = y + bias_C.to(wide)
    if activation == "silu":
        y = F.silu(y)
    return y.to(x_BTC.dtype), torch.cat(states, 0).contiguous()
