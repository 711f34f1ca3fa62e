"""How far tensors are apart. A NaN, or a shape that differs, is a difference that no tolerance allows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from ssmith.models import LMState

# Gradients below this share of the model's largest are judged against the share: what rounding of the
# activations puts into them does not shrink with them.
FLOOR = 1e-6


def difference(found: Tensor, expected: Tensor) -> float:
    """||found - expected|| / ||expected||; the plain norm where nothing is expected but zeros."""
    return _norm_of_difference(found, expected, 0.0)


def largest_difference(pairs: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The largest |a - b| of any element, 0 only if all are equal; NaN if there is one."""
    largest = 0.0
    for a, b in pairs:
        if a.shape != b.shape:
            return math.nan
        if not torch.equal(a, b):
            largest = worst((largest, float((a.double() - b.double()).abs().max())))
    return largest


def gradient_differences(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], floor: float = FLOOR
) -> dict[str, float]:
    """||found - expected|| / max(||expected||, floor of the largest gradient's norm) of every parameter."""
    smallest = floor * max((float(g.double().norm()) for g in expected.values()), default=0.0)
    return {name: _norm_of_difference(found[name], g, smallest) for name, g in expected.items()}


def gradient_difference(
    found: Mapping[str, Tensor], expected: Mapping[str, Tensor], floor: float = FLOOR
) -> tuple[float, str]:
    """The largest of `gradient_differences`, and the parameter it is of."""
    errors = gradient_differences(found, expected, floor)
    name = max(errors, key=lambda n: nan_last(errors[n]))
    return errors[name], name


def state_tensors(state: LMState) -> Iterator[Tensor]:
    """Every tensor of a state, layer by layer."""
    for layer in state.layers:
        yield from (tensor for tensor in layer if tensor is not None)


def worst(errors: Iterable[float]) -> float:
    """The largest; NaN if one is, which max() would lose; 0 of none."""
    return max(errors, key=nan_last, default=0.0)


def nan_last(error: float) -> tuple[bool, float]:
    """A key that sorts NaN after every number."""
    return (math.isnan(error), error)


def _norm_of_difference(found: Tensor, expected: Tensor, smallest: float) -> float:
    if found.shape != expected.shape:
        return math.nan
    wide = expected.double()
    norm = max(float(wide.norm()), smallest)
    return float((found.double() - wide).norm()) / (norm or 1.0)
