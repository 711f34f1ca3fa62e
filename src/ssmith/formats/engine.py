"""Weights of the TypeScript engine, npm `@seanhogg/builderforce-memory-engine`: Mamba-1 by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ssmith.config import Mamba1Config, ModelConfig
from ssmith.models import HybridLM, load_named

# The engine's names of a layer's tensors, and ours. Its convolution has tap 0 on the current token, ours the
# last: `wConv` is turned around.
_LAYER = {
    "wInProj": "mixer.in_proj.weight",
    "bInProj": "mixer.in_proj.bias",
    "wConv": "mixer.conv.weight",
    "bConv": "mixer.conv.bias",
    "wXProj": "mixer.x_proj.weight",
    "bXProj": "mixer.x_proj.bias",
    "wDtProj": "mixer.dt_proj.weight",
    "bDtProj": "mixer.dt_proj.bias",
    "A_log": "mixer.A_log",
    "D_vec": "mixer.D",
    "wOutProj": "mixer.out_proj.weight",
    "bOutProj": "mixer.out_proj.bias",
    "normWeight": "norm.weight",
}
_MODEL = {"embedding": "embedding.weight", "final_norm": "final_norm.weight", "lm_head_bias": "head.bias"}
_DIMS = ("vocabSize", "dModel", "dState", "dConv", "dInner", "dtRank", "numLayers")


def engine_names(layers: int) -> dict[str, str]:
    """Our parameter name for each of the engine's, of a model with so many layers."""
    names = dict(_MODEL)
    for i in range(layers):
        names |= {f"layer{i}.{theirs}": f"layers.{i}.{ours}" for theirs, ours in _LAYER.items()}
    return names


def turn_taps(name: str, tensor: Tensor) -> Tensor:
    """The engine's tensor of that name in our order of taps, or ours in the engine's."""
    return tensor.flip(-1) if name.endswith(".wConv") else tensor


def from_engine_arrays(dims: Mapping[str, int], arrays: Mapping[str, Any]) -> HybridLM:
    """The engine's Mamba-1 model, float32.

    Args:
        dims: vocabSize, dModel, dState, dConv, dInner, dtRank, numLayers.
        arrays: by the engine's names, each a tensor, an array, nested lists or {"shape": ..., "data": ...}.

    Raises:
        ValueError: a size or an array that is missing or unknown, or a shape that differs, by the engine's
            names.
    """
    _check_dims(dims)
    model = HybridLM(_config(dims))
    names = engine_names(dims["numLayers"])
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    for theirs, ours in names.items():
        if theirs not in arrays:
            raise ValueError(f"array {theirs!r} of shape {shapes[ours]} is missing")
    unknown = [name for name in arrays if name not in names]
    if unknown:
        raise ValueError(f"unknown array {unknown[0]!r}; the engine's Mamba-1 model has none so named")
    tensors = {theirs: _tensor(theirs, arrays[theirs]) for theirs in names}
    for theirs, tensor in tensors.items():
        if tuple(tensor.shape) != shapes[names[theirs]]:
            raise ValueError(
                f"array {theirs!r} has shape {tuple(tensor.shape)}, expected {shapes[names[theirs]]}"
            )
    load_named(model, {names[theirs]: turn_taps(theirs, tensor) for theirs, tensor in tensors.items()})
    return model


def _check_dims(dims: Mapping[str, int]) -> None:
    for name in _DIMS:
        if name not in dims:
            raise ValueError(f"dims lacks {name!r}; it needs {', '.join(_DIMS)}")
    for name, value in dims.items():
        if name not in _DIMS:
            raise ValueError(f"unknown size {name!r} in dims; it has {', '.join(_DIMS)}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"size {name!r} in dims must be a whole number of at least 1, got {value!r}")


def _config(dims: Mapping[str, int]) -> ModelConfig:
    return ModelConfig(
        vocab_size=dims["vocabSize"],
        hidden_size=dims["dModel"],
        repeats=dims["numLayers"],
        tie_embeddings=True,
        head_bias=True,
        norm_eps=1e-6,
        mamba1=Mamba1Config(
            state_size=dims["dState"],
            conv_kernel=dims["dConv"],
            expand=dims["dInner"] / dims["dModel"],
            time_step_rank=dims["dtRank"],
            use_bias=True,
            x_proj_bias=True,
            A_log_clamp=(-10.0, 5.0),
            discretization="zoh",
        ),
    )


def _tensor(name: str, array: Any) -> Tensor:
    if not isinstance(array, Mapping):
        return _numbers(name, array)
    if array.keys() != {"shape", "data"}:
        raise ValueError(f"array {name!r} must have 'shape' and 'data', got {sorted(array)}")
    data, shape = _numbers(name, array["data"]), array["shape"]
    if not isinstance(shape, list | tuple) or not all(isinstance(n, int) for n in shape):
        raise ValueError(f"array {name!r} must have a list of whole numbers as its shape, got {shape!r}")
    if data.numel() != math.prod(shape) or min(shape, default=0) < 0:
        raise ValueError(f"array {name!r} has {data.numel()} numbers, its shape {shape} says otherwise")
    return data.reshape(shape)


def _numbers(name: str, values: Any) -> Tensor:
    try:
        numbers = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"array {name!r} is not an array of numbers: {error}") from error
    if numbers.is_complex():
        raise ValueError(f"array {name!r} must be of real numbers, got {numbers.dtype}")
    return numbers
