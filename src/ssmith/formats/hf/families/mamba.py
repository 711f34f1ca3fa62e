"""model_type `mamba`: transformers' MambaForCausalLM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ssmith.config import Mamba1Config, ModelConfig

ARCHITECTURE = "MambaForCausalLM"
# The original repository's name, which transformers reads too; a tied head and what it is tied to.
ALIASES = {"backbone.embedding.weight": "backbone.embeddings.weight"}
TIED = ("lm_head.weight", "backbone.embeddings.weight")

# Theirs: ours, and what MambaConfig takes where config.json says nothing.
_MODEL: dict[str, tuple[str, Any]] = {
    "vocab_size": ("vocab_size", 50280),
    "hidden_size": ("hidden_size", 768),
    "num_hidden_layers": ("repeats", 32),
    "tie_word_embeddings": ("tie_embeddings", True),
    "layer_norm_epsilon": ("norm_eps", 1e-5),
}
_MIXER: dict[str, tuple[str, Any]] = {
    "state_size": ("state_size", 16),
    "conv_kernel": ("conv_kernel", 4),
    "expand": ("expand", 2),
    "use_bias": ("use_bias", False),
    "use_conv_bias": ("use_conv_bias", True),
    "time_step_min": ("time_step_min", 0.001),
    "time_step_max": ("time_step_max", 0.1),
    "time_step_floor": ("time_step_floor", 1e-4),
}
_SILU = ("silu", "swish")  # two names of one function in transformers
# Theirs that do not change what a set of weights computes: initialisation, ids, caches, which of their own
# loops runs, and a residual kept in float32, which it always is here when the weights are.
_WITHOUT_MEANING = {
    "initializer_range", "pad_token_id", "bos_token_id", "eos_token_id", "rescale_prenorm_residual",
    "residual_in_fp32", "time_step_init_scheme", "time_step_scale", "use_associative_scan", "use_cache",
    "use_mambapy", "fused_add_norm", "pad_vocab_size_multiple",
}  # fmt: skip

_NAMES = (
    (r"embedding\.weight", r"backbone.embeddings.weight"),
    (r"final_norm\.weight", r"backbone.norm_f.weight"),
    (r"head\.weight", r"lm_head.weight"),
    (r"layers\.(\d+)\.mixer\.conv\.(weight|bias)", r"backbone.layers.\1.mixer.conv1d.\2"),
    (r"layers\.(\d+)\.(.*)", r"backbone.layers.\1.\2"),
)
_NAMES_BACK = (
    (r"backbone\.embeddings\.weight", r"embedding.weight"),
    (r"backbone\.norm_f\.weight", r"final_norm.weight"),
    (r"lm_head\.weight", r"head.weight"),
    (r"backbone\.layers\.(\d+)\.mixer\.conv1d\.(weight|bias)", r"layers.\1.mixer.conv.\2"),
    (r"backbone\.layers\.(\d+)\.(.*)", r"layers.\1.\2"),
)


def can_write(config: ModelConfig) -> bool:
    """Whether transformers' Mamba computes what a model of these settings computes."""
    mixer = config.mamba1
    return (
        set(config.layers) == {"mamba1"}
        and config.final_norm
        and not config.head_bias
        and mixer.dt_proj_bias
        and not mixer.x_proj_bias
        and mixer.dt_b_c_norm is None
        and mixer.A_log_clamp is None
        and mixer.discretization == "euler"
        and float(mixer.expand).is_integer()
    )


def settings_out(config: ModelConfig) -> dict[str, Any]:
    """config.json from our settings."""
    mixer = config.mamba1
    values: dict[str, Any] = {theirs: getattr(config, ours) for theirs, (ours, _) in _MODEL.items()}
    values |= {theirs: getattr(mixer, ours) for theirs, (ours, _) in _MIXER.items()}
    values["num_hidden_layers"] = len(config.layers)
    values["expand"] = int(mixer.expand)
    values["time_step_rank"] = mixer.rank(config.hidden_size)
    values["intermediate_size"] = mixer.inner_size(config.hidden_size)
    return values | {"hidden_act": "silu", "residual_in_fp32": True}


def settings_in(values: Mapping[str, Any]) -> ModelConfig:
    """Our settings from config.json; ValueError for one that we do not handle and that matters."""
    if values.get("hidden_act", "silu") not in _SILU:
        raise ValueError(f"hidden_act {values['hidden_act']!r} is not handled, only 'silu'")
    mixer = Mamba1Config(**_ours(values, _MIXER), time_step_rank=values.get("time_step_rank", "auto"))
    config = ModelConfig(**_ours(values, _MODEL), mamba1=mixer)
    implied = _implied(config)
    known = {*_MODEL, *_MIXER, *_WITHOUT_MEANING, *implied, "hidden_act", "time_step_rank"}
    for name, value in values.items():
        if name not in known:
            raise ValueError(f"the setting {name!r} ({value!r}) of a mamba model is not handled")
        if name in implied and value != implied[name]:
            raise ValueError(f"{name} {value!r} is not handled: the other settings say {implied[name]!r}")
    return config


def _ours(values: Mapping[str, Any], table: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    """Our settings of a table, from theirs or their defaults; ValueError for a value of another type."""
    settings = {}
    for theirs, (ours, default) in table.items():
        value = values.get(theirs, default)
        wanted = (int, float) if theirs == "expand" or isinstance(default, float) else type(default)
        # bool is an int to Python
        if not isinstance(value, wanted) or isinstance(value, bool) != isinstance(default, bool):
            raise ValueError(f"{theirs} must be like {default!r}, got {value!r}")
        settings[ours] = value
    return settings


def _implied(config: ModelConfig) -> dict[str, Any]:
    """What other settings imply: published folders (state-spaces/mamba-*-hf) repeat it, by the original
    repository's names too. Another value would mean another model."""
    inner = config.mamba1.inner_size(config.hidden_size)
    return {
        "intermediate_size": inner,
        "d_inner": inner,
        "d_model": config.hidden_size,
        "n_layer": config.repeats,
        "rms_norm": True,
        "ssm_cfg": {},
    }


def weights_out(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Their names and shapes for our weights."""
    return {
        _rename(name, _NAMES): w[:, None] if name.endswith("conv.weight") else w
        for name, w in weights.items()
    }


def weights_in(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our names and shapes for their weights, which are those that `weights_out` gives."""
    ours = {_rename(name, _NAMES_BACK): w for name, w in weights.items()}
    return {name: w[:, 0] if name.endswith("conv.weight") else w for name, w in ours.items()}


def _rename(name: str, table: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in table:
        if re.fullmatch(pattern, name):
            return re.sub(pattern, replacement, name)
    raise AssertionError(name)
