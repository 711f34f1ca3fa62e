"""Checks that every operator makes on its inputs: shapes, devices and document borders."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def check_shape(op: str, name: str, tensor: Tensor | None, expected: tuple[int, ...], letters: str) -> None:
    """Raises ValueError when `tensor` (None passes) is not of the `expected` shape, in `letters`."""
    if tensor is not None and tuple(tensor.shape) != expected:
        raise ValueError(f"{op}: {name} must be {letters} = {expected}, got {tuple(tensor.shape)}")


def check_floating(op: str, **tensors: Tensor | None) -> None:
    """Raises TypeError when one of the tensors (None passes) is not of a floating dtype."""
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_floating_point():
            raise TypeError(f"{op}: {name} must be floating point, got {tensor.dtype}")


def check_documents(op: str, cu_seqlens: Tensor | None, batch: int, time: int) -> None:
    """Raises ValueError unless `cu_seqlens` is None or rises strictly from 0 to `time` with `batch` 1."""
    if cu_seqlens is None:
        return
    if cu_seqlens.dtype != torch.int32 or cu_seqlens.dim() != 1 or cu_seqlens.numel() < 2:
        raise ValueError(
            f"{op}: cu_seqlens must be int32 of shape (documents + 1,), "
            f"got {cu_seqlens.dtype} {tuple(cu_seqlens.shape)}"
        )
    if batch != 1:
        raise ValueError(
            f"{op}: with cu_seqlens the batch size must be 1 (documents in one row), got {batch}"
        )
    borders = cu_seqlens.tolist()
    if borders[0] != 0 or borders[-1] != time:
        raise ValueError(f"{op}: cu_seqlens must go from 0 to T = {time}, got {borders[0]} to {borders[-1]}")
    if any(b <= a for a, b in pairwise(borders)):
        raise ValueError(f"{op}: cu_seqlens must rise strictly (no empty document), got {borders}")


def documents(cu_seqlens: Tensor | None, batch: int, time: int) -> list[tuple[slice, slice]]:
    """The (rows, times) slices of independent sequences: all rows at once, or one per document."""
    if cu_seqlens is None:
        return [(slice(0, batch), slice(0, time))]
    borders = cu_seqlens.tolist()
    return [(slice(0, 1), slice(a, b)) for a, b in pairwise(borders)]


def at_least_float32(*tensors: Tensor | None) -> torch.dtype:
    """The dtype in which states and sums are held: float64 when any input is, else float32."""
    wide = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return torch.float64 if wide else torch.float32
