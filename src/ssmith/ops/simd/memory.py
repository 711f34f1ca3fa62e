"""Tensors as kernels see them: addresses, rows at one distance, borders of sequences."""

from __future__ import annotations

import numpy as np
from torch import Tensor


def as_rows(x_BTC: Tensor) -> Tensor:
    """`x` itself when its (batch, time) rows lie at one distance and each is contiguous, else a copy."""
    batch, time, channels = x_BTC.shape
    in_line = batch == 1 or time == 1 or x_BTC.stride(0) == time * x_BTC.stride(1)
    return x_BTC if in_line and (channels == 1 or x_BTC.stride(2) == 1) else x_BTC.contiguous()


def row_stride(x_BTC: Tensor) -> int:
    """Numbers from one (batch, time) row of `as_rows` to the next."""
    return x_BTC.stride(1) if x_BTC.shape[1] > 1 else x_BTC.stride(0)


def borders_of(cu_seqlens: Tensor | None, x_BTC: Tensor) -> np.ndarray:
    """The rows, of B T, where sequences begin, and the end: int64 (sequences + 1,)."""
    batch, time, _ = x_BTC.shape
    if cu_seqlens is None:
        return np.arange(0, batch * time + 1, time, dtype=np.int64)
    return cu_seqlens.numpy().astype(np.int64)


def address(x: Tensor | None) -> int:
    """Where a tensor's numbers stand; 0 for none."""
    return 0 if x is None else x.data_ptr()
