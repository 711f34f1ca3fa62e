"""The norm module of every block."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ssmith.ops import rms_norm


class RMSNorm(nn.Module):
    """rms_norm over the last dimension, with a weight of ones at the start or, `learned` False, none."""

    def __init__(self, size: int, eps: float, learned: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.backend = "auto"
        self.weight = nn.Parameter(torch.ones(size)) if learned else None

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, eps=self.eps, backend=self.backend)
