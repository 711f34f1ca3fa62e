"""The learning rate of every step."""

from __future__ import annotations

import math

from ssmith.config import OptimConfig


def learning_rate(step: int, total: int, config: OptimConfig) -> float:
    """The rate of optimizer step `step` (1 to `total`): linear warm-up, then a cosine down to the minimum.

    The warm-up reaches the peak at step `warmup_steps` (or at the last step of a shorter run).
    """
    warmup = min(config.warmup_steps, total)
    if step < warmup:
        return config.lr * step / warmup
    done = (step - warmup) / max(1, total - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * done))
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * cosine)
