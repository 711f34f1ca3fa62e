"""linear_cross_entropy, the specification: per-token losses from logits that are all there."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ssmith.ops.shapes import at_least_float32


def token_losses_reference(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_T: Tensor,
    label_smoothing: float,
    z_loss: float,
) -> Tensor:
    """The loss of each token, float32 or float64; see `ssmith.ops.linear_cross_entropy`."""
    wide = at_least_float32(hidden_TD, weight_VD)
    logits = F.linear(hidden_TD, weight_VD, bias_V).to(wide)
    lse = torch.logsumexp(logits, -1)
    losses = lse - logits.gather(-1, targets_T[:, None])[:, 0]
    if label_smoothing:
        losses = (1 - label_smoothing) * losses + label_smoothing * (lse - logits.mean(-1))
    if z_loss:
        losses = losses + z_loss * lse.square()
    return losses
