"""The Mamba-1 mixer (Gu and Dao, arXiv 2312.00752, figure 3) and its decode state."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ssmith.config.schema import Mamba1Config
from ssmith.models.blocks.norm import RMSNorm
from ssmith.ops import causal_conv1d, selective_scan
from ssmith.ops.shapes import at_least_float32


class Mamba1State(NamedTuple):
    """What a sequence leaves behind: conv (B, I, K - 1), its last inputs, and ssm (B, I, N)."""

    conv: Tensor
    ssm: Tensor


class DepthwiseConv(nn.Module):
    """Causal depthwise convolution with SiLU; weight (I, K), the last tap on the current token."""

    def __init__(self, channels: int, kernel: int, bias: bool) -> None:
        super().__init__()
        self.backend = "auto"
        bound = kernel**-0.5
        self.weight = nn.Parameter(torch.empty(channels, kernel).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound)) if bias else None

    def forward(self, x: Tensor, state: Tensor | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
        return causal_conv1d(
            x, self.weight, self.bias,
            activation="silu", initial_state=state, cu_seqlens=cu_seqlens, backend=self.backend,
        )  # fmt: skip


class Mamba1(nn.Module):
    """Project, convolve, make dt, B and C from the result, scan, gate, project.

    forward(x, state, cu_seqlens) takes x (B, T, D) and the state that went before (None: zeros), and returns
    (B, T, D) and the state after; with `cu_seqlens` B is 1 and states are per document.
    """

    def __init__(self, hidden_size: int, config: Mamba1Config) -> None:
        super().__init__()
        inner, state_size = config.inner_size(hidden_size), config.state_size
        rank = config.rank(hidden_size)
        self.splits = (rank, state_size, state_size)
        self.A_log_clamp = config.A_log_clamp
        self.discretization = config.discretization
        self.backend = "auto"
        self.in_proj = nn.Linear(hidden_size, 2 * inner, bias=config.use_bias)
        self.conv = DepthwiseConv(inner, config.conv_kernel, config.use_conv_bias)
        self.x_proj = nn.Linear(inner, sum(self.splits), bias=config.x_proj_bias)
        self.dt_norm = _norm(config, rank)
        self.b_norm = _norm(config, state_size)
        self.c_norm = _norm(config, state_size)
        self.dt_proj = nn.Linear(rank, inner, bias=config.dt_proj_bias)
        self.A_log = nn.Parameter(torch.arange(1.0, state_size + 1).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, hidden_size, bias=config.use_bias)
        self._initialize(config, rank)

    def _initialize(self, config: Mamba1Config, rank: int) -> None:
        """As in section 3.6 of the paper: softplus(dt_proj.bias) is log-uniform in [min, max]."""
        for projection in (self.in_proj, self.x_proj, self.out_proj):
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)
        nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)
        if self.dt_proj.bias is not None:
            low, high = math.log(config.time_step_min), math.log(config.time_step_max)
            dt = (
                torch.empty_like(self.dt_proj.bias)
                .uniform_(low, high)
                .exp()
                .clamp(min=config.time_step_floor)
            )
            with torch.no_grad():
                self.dt_proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus

    def initial_state(self, rows: int) -> Mamba1State:
        """The state before the first token: zeros."""
        kernel = self.conv.weight.shape[1]
        conv = self.conv.weight.new_zeros(rows, self.D.shape[0], kernel - 1)
        ssm = self.A_log.new_zeros(rows, *self.A_log.shape, dtype=at_least_float32(self.A_log))
        return Mamba1State(conv, ssm)

    def forward(
        self, x_BTD: Tensor, state: Mamba1State | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Mamba1State]:
        conv_state, ssm_state = state if state is not None else (None, None)
        u_BTI, z_BTI = self.in_proj(x_BTD).chunk(2, -1)
        u_BTI, conv_state = self.conv(u_BTI, conv_state, cu_seqlens)
        dt_BTR, B_BTN, C_BTN = self.x_proj(u_BTI).split(self.splits, -1)
        delta_BTI = self.dt_proj(self.dt_norm(dt_BTR))
        y_BTI, ssm_state = selective_scan(
            u_BTI, delta_BTI, self._decay(), self.b_norm(B_BTN), self.c_norm(C_BTN), self.D, z_BTI,
            initial_state=ssm_state, cu_seqlens=cu_seqlens, discretization=self.discretization,
            backend=self.backend,
        )  # fmt: skip
        return self.out_proj(y_BTI), Mamba1State(conv_state, ssm_state)

    def _decay(self) -> Tensor:
        """A = -exp(A_log), float32 or float64."""
        A_log = self.A_log if self.A_log.dtype == torch.float64 else self.A_log.float()
        if self.A_log_clamp is not None:
            low, high = self.A_log_clamp
            inside = (A_log > low) & (A_log < high)
            A_log = torch.where(inside, A_log, A_log.detach().clamp(low, high))
        return -torch.exp(A_log)


def _norm(config: Mamba1Config, size: int) -> nn.Module:
    if config.dt_b_c_norm is None:
        return nn.Identity()
    return RMSNorm(size, config.dt_b_c_norm_eps, learned=config.dt_b_c_norm == "learned")
