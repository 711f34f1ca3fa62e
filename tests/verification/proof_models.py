"""Small models for the proofs, one of them with every optional parameter."""

from __future__ import annotations

import torch

from ssmith.config import Mamba1Config, ModelConfig
from ssmith.models import HybridLM

EVERYTHING = ModelConfig(
    vocab_size=13,
    hidden_size=6,
    tie_embeddings=False,
    head_bias=True,
    mamba1=Mamba1Config(
        state_size=3,
        time_step_rank=2,
        use_bias=True,
        x_proj_bias=True,
        dt_b_c_norm="learned",
        A_log_clamp=(0.0, 1.05),  # A_log starts as log(1, 2, 3): the first at the clamp, the last past it
    ),
)
PLAIN = ModelConfig(vocab_size=11, hidden_size=8, repeats=2, mamba1=Mamba1Config(state_size=3))
SMALLEST = ModelConfig(vocab_size=5, hidden_size=2, final_norm=False, mamba1=Mamba1Config(state_size=2))


def build(config: ModelConfig, seed: int = 0) -> HybridLM:
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return HybridLM(config)
