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
    logits = F.linear(hidden_TD, weight_VD, bias_V).to(at_least_float32(hidden_TD, weight_VD))
    return losses_of_logits(logits, targets_T, label_smoothing, z_loss)[0]


def losses_of_logits(
    logits_TV: Tensor, targets_T: Tensor, label_smoothing: float, z_loss: float
) -> tuple[Tensor, Tensor]:
    """The loss of each token, and the logarithm of its sum of exponentials."""
    lse = torch.logsumexp(logits_TV, -1)
    losses = lse - logits_TV.gather(-1, targets_T[:, None])[:, 0]
    if label_smoothing:
        losses = (1 - label_smoothing) * losses + label_smoothing * (lse - logits_TV.mean(-1))
    if z_loss:
        losses = losses + z_loss * lse.square()
    return losses, lse
