"""LMState: what sequences leave behind in every layer, so that they can go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class LMState:
    """One decode state per layer, each a NamedTuple of tensors whose first dimension is the row.

    A row is a sequence: a row of the batch, or a document with `cu_seqlens`. The size does not grow with the
    number of tokens read. No method changes a state, and no result shares memory with it.
    """

    layers: tuple[Any, ...]

    @property
    def rows(self) -> int:
        """The number of sequences."""
        return self.layers[0][0].shape[0]

    def select(self, rows: Sequence[int] | Tensor) -> LMState:
        """The state of the sequences with these indices, in this order."""
        index = torch.as_tensor(rows, device=self.layers[0][0].device)
        if index.dim() != 1 or index.numel() == 0 or index.dtype not in (torch.int64, torch.int32):
            kind = f"{index.dtype} of shape {tuple(index.shape)}"
            raise ValueError(f"rows must be a list of at least one index, got {kind}")
        if int(index.min()) < 0 or int(index.max()) >= self.rows:
            raise ValueError(f"row indices must be in [0, {self.rows}), got {index.tolist()}")
        return self._map(lambda x: x.index_select(0, index))

    def reorder(self, rows: Sequence[int] | Tensor) -> LMState:
        """Like `select`; the word of beam search, where an index may stand more than once."""
        return self.select(rows)

    @staticmethod
    def stack(states: Sequence[LMState]) -> LMState:
        """The sequences of all states in one, in order."""
        if not states:
            raise ValueError("stack needs at least one state")
        if len({len(s.layers) for s in states}) != 1:
            raise ValueError(f"states of different models: {[len(s.layers) for s in states]} layers")
        layers = zip(*(s.layers for s in states), strict=True)
        return LMState(tuple(type(same[0])(*map(torch.cat, zip(*same, strict=True))) for same in layers))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> LMState:
        """A copy on another device or in another dtype."""
        return self._map(lambda x: x.to(device=device, dtype=dtype, copy=True))

    def detach(self) -> LMState:
        """A copy from which no gradient flows back."""
        return self._map(lambda x: x.detach().clone())

    def _map(self, function: Callable[[Tensor], Tensor]) -> LMState:
        return LMState(tuple(type(layer)(*map(function, layer)) for layer in self.layers))
