"""Batches of a token stream: shuffled for ever, with a state of a few numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ssmith.data.packing import IGNORE_INDEX, TokenStream


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of a stream as the model takes them.

    ids: (B, T) int64 inputs. targets: (B, T) int64, the token after each, -100 where nothing is asked.
    tokens: how many targets count. epoch: passes over the data finished with this batch, 1.5 in mid-second.
    """

    ids: Tensor
    targets: Tensor
    tokens: int
    epoch: float


class BatchLoader:
    """Iterates over the rows of `stream` for ever, each epoch in an order of its own, fixed by (seed, epoch).

    Every row comes once an epoch; the last batch of an epoch holds what is left and may be smaller. The state
    is the epoch and the rows of it already given out, so a resumed loader goes on with the same batches, with
    another batch size too. Orders come from numpy's default generator.

    Raises ValueError for a batch size below 1, a negative seed, and a token id outside `vocab_size` if given.
    """

    def __init__(
        self, stream: TokenStream, batch_size: int, seed: int, vocab_size: int | None = None
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        if seed < 0:
            raise ValueError(f"the seed must not be negative, got {seed}")
        if vocab_size is not None:
            stream.check_vocab_size(vocab_size)
        self.stream = stream
        self.batch_size = batch_size
        self.seed = seed
        self._fingerprint = stream.fingerprint()
        self._start(epoch=0, position=0)

    @property
    def rows_per_epoch(self) -> int:
        return self.stream.num_rows

    @property
    def batches_per_epoch(self) -> int:
        return -(-self.rows_per_epoch // self.batch_size)

    @property
    def tokens_per_epoch(self) -> int:
        """Targets in an epoch: every token of the stream but the very first."""
        return self.stream.num_targets

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        indices = self._order[self._position : self._position + self.batch_size]
        position = self._position + len(indices)
        batch = _batch(self.stream, indices, self._epoch + position / self.rows_per_epoch)
        # Moved on before the batch is given out: a state taken in between speaks of the next one.
        if position == self.rows_per_epoch:
            self._start(self._epoch + 1, 0)
        else:
            self._position = position
        return batch

    def state_dict(self) -> dict[str, int]:
        """Where the loader stands ("epoch", "position" in rows) and in which data; JSON takes it."""
        return {"epoch": self._epoch, "position": self._position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken; ValueError when it is broken or of other data, length or seed."""
        missing = [
            key for key in ("epoch", "position", *self._identity()) if not isinstance(state.get(key), int)
        ]
        if missing:
            raise ValueError(
                f"the data loader's state lacks a whole number for {', '.join(missing)}; got {dict(state)}"
            )
        for key, here in self._identity().items():
            if state[key] != here:
                raise ValueError(
                    f"the data loader's state was saved with {key} {state[key]}, this run has {here}; "
                    "resume with the same data, tokenizer, max_seq_len and seed, or start a new run"
                )
        if state["epoch"] < 0 or not 0 <= state["position"] < self.rows_per_epoch:
            raise ValueError(
                f"the data loader's state names epoch {state['epoch']}, row {state['position']} "
                f"of {self.rows_per_epoch}: no such place; use another checkpoint"
            )
        self._start(state["epoch"], state["position"])

    def _identity(self) -> dict[str, int]:
        return {"seed": self.seed, "max_seq_len": self.stream.max_seq_len, "data_crc32": self._fingerprint}

    def _start(self, epoch: int, position: int) -> None:
        self._epoch, self._position = epoch, position
        self._order = np.random.default_rng([self.seed, epoch]).permutation(self.rows_per_epoch)


def _batch(stream: TokenStream, indices: Sequence[int] | np.ndarray, epoch: float) -> Batch:
    ids, targets = stream.rows(indices)
    return Batch(ids, targets, int((targets != IGNORE_INDEX).sum()), epoch)
