"""AdamW for these models: which parameters are decayed, and clipping that refuses what is not finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from ssmith.config import OptimConfig

# Two-dimensional, but no matrix of a product: the decay rates of states and the taps of filters.
NEVER_DECAYED = ("A_log", "conv.weight")


class NonFiniteGradientError(ValueError):
    """A gradient was NaN or infinite; nothing was updated."""


def is_decayed(name: str, parameter: torch.Tensor) -> bool:
    """Whether weight decay acts on the parameter of that name: on matrices of products only."""
    return parameter.dim() >= 2 and not name.endswith(NEVER_DECAYED)


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """torch.optim.AdamW over all parameters that require gradients, in two groups: decayed and not."""
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    if not named:
        raise ValueError("nothing to train: every parameter is frozen")
    groups = [
        {"params": [p for n, p in named if is_decayed(n, p)], "weight_decay": config.weight_decay},
        {"params": [p for n, p in named if not is_decayed(n, p)], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]],
        lr=config.lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def clip_gradients(named: Iterable[tuple[str, nn.Parameter]], limit: float) -> float:
    """Scales all gradients so that their global norm is at most `limit` (0: no limit); gives the norm before.

    Raises:
        NonFiniteGradientError: naming the first parameter whose gradient is not finite.
    """
    named = [(n, p) for n, p in named if p.grad is not None]
    norm = torch.nn.utils.get_total_norm([p.grad for _, p in named if p.grad is not None])
    if not bool(torch.isfinite(norm)):
        bad = [n for n, p in named if p.grad is not None and not bool(torch.isfinite(p.grad).all())]
        raise NonFiniteGradientError(
            f"the gradient of {bad[0] if bad else 'all parameters together'} is not finite"
        )
    if limit > 0:
        torch.nn.utils.clip_grads_with_norm_([p for _, p in named], limit, norm)
    return float(norm)
