"""linear_cross_entropy in chunks of tokens, on any device: memory for the logits of one chunk."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from ssmith.ops.linear_cross_entropy.reference import losses_of_logits, token_losses_reference
from ssmith.ops.shapes import at_least_float32

# A chunk's logits: 4 Mi numbers are 16 MiB in float32, large enough for full speed of the product.
LOGITS_PER_CHUNK = 1 << 22


def chunk_length(vocabulary: int) -> int:
    """How many tokens share one chunk of logits."""
    return max(16, LOGITS_PER_CHUNK // vocabulary)


def per_token_losses(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_T: Tensor,
    label_smoothing: float,
    z_loss: float,
) -> Tensor:
    """One loss per token; backward makes each chunk's logits again."""
    length = chunk_length(weight_VD.shape[0])
    losses = [
        checkpoint(
            token_losses_reference, hidden, weight_VD, bias_V, targets, label_smoothing, z_loss,
            use_reentrant=False,
        )
        for hidden, targets in zip(hidden_TD.split(length), targets_T.split(length), strict=True)
    ]  # fmt: skip
    return torch.cat([x for x in losses if isinstance(x, Tensor)])


def mean_or_sum_of_losses(
    hidden_TD: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_T: Tensor,
    counted_T: Tensor,
    coefficients_T: Tensor,
    label_smoothing: float,
    z_loss: float,
) -> Tensor:
    """sum_t coefficients_t loss_t; the gradients are made in the forward pass and scaled in the backward."""
    return _WeightedLoss.apply(
        hidden_TD,
        weight_VD,
        bias_V,
        targets_T,
        counted_T,
        coefficients_T,
        label_smoothing,
        z_loss,
        torch.is_grad_enabled(),  # inside forward it is always off
    )  # pyright: ignore[reportReturnType]


class _WeightedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        counted: Tensor,
        coefficients: Tensor,
        label_smoothing: float,
        z_loss: float,
        grad_enabled: bool,
    ) -> Tensor:
        wants_hidden, wants_weight, wants_bias = (grad_enabled and x for x in ctx.needs_input_grad[:3])
        wants_any = wants_hidden or wants_weight or wants_bias
        d_hidden = torch.empty_like(hidden) if wants_hidden else None
        wide = at_least_float32(hidden, weight)
        d_weight = torch.zeros_like(weight, dtype=wide) if wants_weight else None
        d_bias = torch.zeros_like(bias, dtype=wide) if wants_bias and bias is not None else None
        d_coefficients = torch.empty_like(coefficients) if ctx.needs_input_grad[5] else None
        loss = torch.zeros((), dtype=wide, device=hidden.device)
        length = chunk_length(weight.shape[0])
        for start in range(0, len(hidden), length):
            rows = slice(start, start + length)
            logits = F.linear(hidden[rows], weight, bias).to(wide)
            losses, d_logits = _losses_and_gradient(
                logits, targets[rows], counted[rows], coefficients[rows], label_smoothing, z_loss, wants_any
            )
            loss += losses.dot(coefficients[rows])
            if d_coefficients is not None:
                d_coefficients[rows] = losses
            if d_logits is None:
                continue
            narrow = d_logits.to(hidden.dtype)
            if d_hidden is not None:
                torch.mm(narrow, weight.to(hidden.dtype), out=d_hidden[rows])
            if d_weight is not None:
                d_weight += narrow.t() @ hidden[rows]
            if d_bias is not None:
                d_bias += d_logits.sum(0)
        ctx.save_for_backward(d_hidden, d_weight, d_bias, d_coefficients)
        ctx.dtypes = (weight.dtype, None if bias is None else bias.dtype)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        (upstream,) = gradients
        d_hidden, d_weight, d_bias, d_coefficients = ctx.saved_tensors
        weight_dtype, bias_dtype = ctx.dtypes
        return (
            None if d_hidden is None else d_hidden * upstream.to(d_hidden.dtype),
            None if d_weight is None else (d_weight * upstream).to(weight_dtype),
            None if d_bias is None else (d_bias * upstream).to(bias_dtype),
            None, None,
            None if d_coefficients is None else d_coefficients * upstream,
            None, None, None,
        )  # fmt: skip


def _losses_and_gradient(
    logits: Tensor,
    targets: Tensor,
    counted: Tensor,
    coefficients: Tensor,
    label_smoothing: float,
    z_loss: float,
    gradient: bool,
) -> tuple[Tensor, Tensor | None]:
    """Losses per token and, in the logits' own memory, the gradient of their weighted sum."""
    losses, lse = losses_of_logits(logits, targets, label_smoothing, z_loss)
    # as in torch, a token that does not count adds no loss even where its logits are not finite
    losses = torch.where(counted, losses, 0.0)
    if not gradient:
        return losses, None
    d_logits = logits.sub_(lse[:, None]).exp_()
    d_logits.mul_((coefficients * (1 + 2 * z_loss * lse))[:, None])
    if label_smoothing:
        d_logits.sub_((coefficients * (label_smoothing / logits.shape[-1]))[:, None])
    d_logits.scatter_add_(-1, targets[:, None], (coefficients * (label_smoothing - 1))[:, None])
    return losses, d_logits
