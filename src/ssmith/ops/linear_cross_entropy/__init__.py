"""linear_cross_entropy: head and loss together; the logits of a whole batch are never held."""

from __future__ import annotations

import torch
from torch import Tensor

from ssmith.ops.linear_cross_entropy.chunked import mean_or_sum_of_losses, per_token_losses
from ssmith.ops.shapes import check_floating, check_shape

__all__ = ["REDUCTIONS", "linear_cross_entropy"]

REDUCTIONS = ("mean", "sum", "none")


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    token_weights: Tensor | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """Cross-entropy of softmax(hidden weight^T + bias) against `targets`.

    Per token: (1 - s)(lse - logit[target]) + s (lse - mean(logits)) + z_loss lse^2, with lse the logarithm
    of the sum of exponentials and s the label smoothing; in nats.

    Args:
        hidden: (..., width). weight: (vocabulary, width). bias: (vocabulary,).
        targets: integer, of hidden's shape without the last dimension; `ignore_index` where nothing counts.
        token_weights: like targets; the mean is then weighted by them.
        reduction: `mean` over the tokens that count, `sum`, or `none` (one loss per token, 0 where ignored).

    Returns:
        A float32 (float64 when an input is) scalar, or a tensor of targets' shape with `none`. A mean over no
        token is NaN, as in torch.nn.functional.cross_entropy.

    Memory: logits exist for one chunk of tokens at a time; for `mean` and `sum` the gradients of hidden,
    weight and bias are made beside the loss, so that no product is done twice.

    Raises:
        ValueError: a shape that does not fit, or an unknown reduction.
    """
    op = "linear_cross_entropy"
    if hidden.dim() < 1 or weight.dim() != 2:
        raise ValueError(
            f"{op}: hidden must be (..., D), weight (V, D), got {tuple(hidden.shape)}, {tuple(weight.shape)}"
        )
    if targets.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{op}: targets must be int64 or int32, got {targets.dtype}")
    vocabulary, width = weight.shape
    check_shape(op, "hidden", hidden, (*targets.shape, width), "(*targets.shape, D)")
    check_shape(op, "bias", bias, (vocabulary,), "(V,)")
    check_shape(op, "token_weights", token_weights, tuple(targets.shape), "targets' shape")
    check_floating(op, hidden=hidden, weight=weight, bias=bias, token_weights=token_weights)
    if reduction not in REDUCTIONS:
        raise ValueError(f"{op}: unknown reduction {reduction!r}; choose one of {', '.join(REDUCTIONS)}")
    rows, flat_targets = hidden.reshape(-1, width), targets.reshape(-1).long()
    counted = flat_targets != ignore_index
    coefficients = _coefficients(rows, counted, token_weights)
    flat_targets = torch.where(counted, flat_targets, 0)
    if reduction == "none":
        losses = per_token_losses(rows, weight, bias, flat_targets, label_smoothing, z_loss)
        # as in torch, a token that does not count has loss 0 even where its logits are not finite
        return torch.where(counted, losses * coefficients, 0.0).reshape(targets.shape)
    if reduction == "mean":
        coefficients = coefficients / coefficients.sum()
    loss = mean_or_sum_of_losses(
        rows, weight, bias, flat_targets, counted, coefficients, label_smoothing, z_loss
    )
    return loss * torch.nan if reduction == "mean" and len(rows) == 0 else loss


def _coefficients(hidden: Tensor, counted: Tensor, token_weights: Tensor | None) -> Tensor:
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    ones = counted.to(wide)
    return ones if token_weights is None else ones * token_weights.reshape(-1).to(wide)
