"""model_type `ssmith`: models that no architecture of transformers computes; settings and names are ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ssmith.config import ModelConfig, from_dict, to_dict

ARCHITECTURE = "HybridLM"
# Names by which other writers call a tensor of ours; the names of a tied head and of what it is tied to.
ALIASES: dict[str, str] = {}
TIED = ("head.weight", "embedding.weight")
_WITHOUT_MEANING = ("bos_token_id", "eos_token_id", "pad_token_id")


def can_write(config: ModelConfig) -> bool:
    """Every model."""
    return True


def settings_out(config: ModelConfig) -> dict[str, Any]:
    """config.json from our settings."""
    return to_dict(config)


def settings_in(values: Mapping[str, Any]) -> ModelConfig:
    """Our settings from config.json."""
    return from_dict(ModelConfig, {k: v for k, v in values.items() if k not in _WITHOUT_MEANING})


def weights_out(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our weights as they are."""
    return dict(weights)


def weights_in(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """The weights as they are."""
    return dict(weights)
