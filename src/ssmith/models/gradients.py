"""Gradients by name, and weights by name; no optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ssmith.models.lm import HybridLM


def gradients(
    model: HybridLM,
    ids: Tensor,
    targets: Tensor | None = None,
    labels: Tensor | None = None,
    activation_checkpointing: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and the gradient of every parameter, frozen ones included; the model is left untouched.

    Args:
        ids, targets, labels: as in a call of the model; give targets or labels.
        activation_checkpointing: keep only the inputs of blocks; the result is the same to the bit.

    Returns:
        The loss, detached, and one tensor of its own for each name of `model.named_parameters()`; zeros where
        the loss does not depend on a parameter.
    """
    if targets is None and labels is None:
        raise ValueError(
            "gradients needs targets (what to predict at each position) or labels (ids to shift)"
        )
    parameters = dict(model.named_parameters())
    frozen = [p for p in parameters.values() if not p.requires_grad]
    before = model.activation_checkpointing
    try:
        for p in frozen:
            p.requires_grad_(True)
        if activation_checkpointing:
            model.set_activation_checkpointing("full")
        with torch.enable_grad():
            loss = model(ids, targets=targets, labels=labels, logits=False).loss
            found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    finally:
        model.set_activation_checkpointing(before)
        for p in frozen:
            p.requires_grad_(False)
    owned: dict[str, Tensor] = {}
    seen: set[int] = set()
    for (name, p), gradient in zip(parameters.items(), found, strict=True):
        owned[name] = torch.zeros_like(p) if gradient is None else _own(gradient, seen)
    return loss.detach(), owned


def _own(gradient: Tensor, seen: set[int]) -> Tensor:
    """A tensor that shares memory with no other and keeps no larger storage alive."""
    storage = gradient.untyped_storage()
    whole = gradient.is_contiguous() and storage.nbytes() == gradient.nbytes
    if not whole or storage.data_ptr() in seen:
        return gradient.clone(memory_format=torch.contiguous_format)
    seen.add(storage.data_ptr())
    return gradient


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter by name."""
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def load_named(model: nn.Module, arrays: Mapping[str, Any]) -> None:
    """Copies arrays (tensors, NumPy arrays or nested lists) into the parameters of the same names.

    Raises:
        ValueError: a name that is missing or unknown, or a shape that differs; nothing is then copied. The
            message names the tensor, its shape and the expected one.
    """
    parameters = dict(model.named_parameters())
    tensors = {name: a if isinstance(a, Tensor) else torch.tensor(a) for name, a in arrays.items()}
    for name, p in parameters.items():
        if name not in tensors:
            raise ValueError(f"tensor {name!r} of shape {tuple(p.shape)} is missing")
    for name, tensor in tensors.items():
        if name not in parameters:
            raise ValueError(
                f"unknown tensor {name!r} of shape {tuple(tensor.shape)}: the model has none so named"
            )
        if tensor.is_complex() or tensor.dtype == torch.bool:
            raise ValueError(f"tensor {name!r} is {tensor.dtype}, expected real numbers")
        expected = tuple(parameters[name].shape)
        if tuple(tensor.shape) != expected:
            raise ValueError(f"tensor {name!r} has shape {tuple(tensor.shape)}, expected {expected}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)
