"""model_type `mamba`: transformers' MambaForCausalLM."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ssmith.config import Mamba1Config, ModelConfig

ARCHITECTURE = "MambaForCausalLM"

# Ours and theirs, for settings that both have.
_MIXER = (
    "state_size",
    "conv_kernel",
    "expand",
    "use_bias",
    "use_conv_bias",
    "time_step_min",
    "time_step_max",
)
_MIXER = (*_MIXER, "time_step_floor")
_MODEL = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "repeats": "num_hidden_layers",
    "tie_embeddings": "tie_word_embeddings",
    "norm_eps": "layer_norm_epsilon",
}
# Theirs that do not change what a set of weights computes: initialisation, caches, which of their own loops
# runs, and a residual kept in float32, which ours always is when the weights are.
_WITHOUT_MEANING = {
    "initializer_range", "pad_token_id", "bos_token_id", "eos_token_id", "rescale_prenorm_residual",
    "residual_in_fp32", "time_step_init_scheme", "time_step_scale", "use_associative_scan", "use_cache",
    "use_mambapy",
}  # fmt: skip
# Published folders (state-spaces/mamba-*-hf) carry these beside the config's own fields; the first two are
# derived and checked.
_DERIVED = {"intermediate_size", "n_layer", "d_model", "d_inner", "ssm_cfg", "rms_norm", "fused_add_norm"}
_DERIVED |= {"pad_vocab_size_multiple"}

_NAMES = (
    (r"embedding\.weight", r"backbone.embeddings.weight"),
    (r"final_norm\.weight", r"backbone.norm_f.weight"),
    (r"head\.weight", r"lm_head.weight"),
    (r"layers\.(\d+)\.mixer\.conv\.(weight|bias)", r"backbone.layers.\1.mixer.conv1d.\2"),
    (r"layers\.(\d+)\.(.*)", r"backbone.layers.\1.\2"),
)
_NAMES_BACK = (
    (r"backbone\.embeddings?\.weight", r"embedding.weight"),
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
    values: dict[str, Any] = {theirs: getattr(config, ours) for ours, theirs in _MODEL.items()}
    values |= {name: getattr(mixer, name) for name in _MIXER}
    values["num_hidden_layers"] = len(config.layers)
    values["expand"] = int(mixer.expand)
    values["time_step_rank"] = mixer.rank(config.hidden_size)
    values["intermediate_size"] = mixer.inner_size(config.hidden_size)
    return values | {"hidden_act": "silu", "residual_in_fp32": True}


def settings_in(values: Mapping[str, Any]) -> ModelConfig:
    """Our settings from config.json; ValueError for one that we do not handle and that matters."""
    if values.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act {values['hidden_act']!r} is not handled, only 'silu'")
    known = {*_MODEL.values(), *_MIXER, *_WITHOUT_MEANING, *_DERIVED, "hidden_act", "time_step_rank"}
    foreign = [name for name in values if name not in known]
    if foreign:
        raise ValueError(
            f"the setting {foreign[0]!r} ({values[foreign[0]]!r}) of a mamba model is not handled"
        )
    model = {ours: values[theirs] for ours, theirs in _MODEL.items() if theirs in values}
    mixer = {name: values[name] for name in _MIXER if name in values}
    mixer["time_step_rank"] = values.get("time_step_rank", "auto")
    config = ModelConfig(**model, mamba1=Mamba1Config(**mixer))
    inner = config.mamba1.inner_size(config.hidden_size)
    if values.get("intermediate_size", inner) != inner:
        raise ValueError(
            f"intermediate_size {values['intermediate_size']} is not expand x hidden_size = {inner}"
        )
    return config


def weights_out(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Their names and shapes for our weights."""
    return {
        _rename(name, _NAMES): w[:, None] if name.endswith("conv.weight") else w
        for name, w in weights.items()
    }


def weights_in(weights: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Our names and shapes for their weights."""
    ours = {_rename(name, _NAMES_BACK): w for name, w in weights.items()}
    return {n: w.squeeze(1) if n.endswith("conv.weight") and w.dim() == 3 else w for n, w in ours.items()}


def _rename(name: str, table: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in table:
        if re.fullmatch(pattern, name):
            return re.sub(pattern, replacement, name)
    return name  # unknown: whoever loads it says so
