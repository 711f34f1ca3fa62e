"""Joins documents into one stream of token ids and cuts it into rows for training, without losing a token."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ssmith.data.text import Document
from ssmith.data.tokenizer import Tokenizer

# The target that linear_cross_entropy and torch's cross_entropy leave out.
IGNORE_INDEX = -100


@dataclass(frozen=True, eq=False)
class TokenStream:
    """Token ids in a row of documents, seen as rows of `max_seq_len` inputs and the tokens that follow them.

    Row i reads tokens[i*L : (i+1)*L] and predicts tokens[i*L + 1 : (i+1)*L + 1], so every token but the very
    first is a target exactly once. A last row that is too short is filled with `pad_token_id`, targets -100.

    tokens: (n,) integers, n >= 2, kept as compact as given (uint16 or int32).
    """

    tokens: np.ndarray
    max_seq_len: int
    pad_token_id: int = 0

    def __post_init__(self) -> None:
        if self.tokens.ndim != 1 or self.tokens.dtype.kind not in "iu":
            raise ValueError(
                f"tokens must be integers of shape (n,), got {self.tokens.dtype} {self.tokens.shape}"
            )
        if self.max_seq_len < 1:
            raise ValueError(f"max_seq_len must be at least 1, got {self.max_seq_len}")
        if len(self.tokens) < 2:
            raise ValueError(
                f"the text gives {len(self.tokens)} token(s), and predicting takes at least 2; give more text"
            )

    @property
    def num_targets(self) -> int:
        """Tokens that are predicted in one pass: all but the very first."""
        return len(self.tokens) - 1

    @property
    def num_rows(self) -> int:
        """Rows in one pass, the short last one included."""
        return -(-self.num_targets // self.max_seq_len)

    def rows(self, indices: Sequence[int] | np.ndarray) -> tuple[Tensor, Tensor]:
        """(inputs, targets) of the rows named, both int64 of shape (len(indices), max_seq_len)."""
        length = self.max_seq_len
        inputs = np.full((len(indices), length), self.pad_token_id, dtype=np.int64)
        targets = np.full((len(indices), length), IGNORE_INDEX, dtype=np.int64)
        for row, index in enumerate(indices):
            if not 0 <= index < self.num_rows:
                raise IndexError(f"row {index} of a stream of {self.num_rows} rows")
            block = self.tokens[index * length : (index + 1) * length + 1]
            inputs[row, : len(block)] = block[:length]
            targets[row, : len(block) - 1] = block[1:]
        return torch.from_numpy(inputs), torch.from_numpy(targets)

    def check_vocab_size(self, vocab_size: int) -> None:
        """Raises ValueError when an id, or the one that pads, has no row in an embedding of `vocab_size`."""
        if self.tokens.min() >= 0 and self.tokens.max() < vocab_size and self.pad_token_id < vocab_size:
            return
        wrong = np.flatnonzero((self.tokens < 0) | (self.tokens >= vocab_size))
        what = (
            f"{self.tokens[wrong[0]]} at position {wrong[0]}"
            if len(wrong)
            else f"{self.pad_token_id} for padding"
        )
        raise ValueError(
            f"token id {what} of the data is outside the model's vocabulary of {vocab_size} ids; "
            "use the tokenizer that belongs to the model"
        )

    def fingerprint(self) -> int:
        """A checksum of the ids (CRC-32), the same for the same ids in any dtype: is this the same data?"""
        crc, step = 0, 1 << 20
        for start in range(0, len(self.tokens), step):
            crc = zlib.crc32(self.tokens[start : start + step].astype("<i4").tobytes(), crc)
        return crc


def pack_documents(documents: Sequence[Document], tokenizer: Tokenizer, max_seq_len: int) -> TokenStream:
    """The stream `eos d1 eos d2 ...` of the documents, for rows of `max_seq_len`.

    A tokenizer without an eos token joins them with nothing between. Raises ValueError when there is nothing
    to predict.
    """
    if not documents:
        raise ValueError("there are no documents to train on or to measure; give some text")
    eos = tokenizer.eos_token_id
    separator = np.array([] if eos is None else [eos], dtype=tokenizer.dtype)
    pieces: list[np.ndarray] = []
    for document in documents:
        pieces += [separator, tokenizer.encode_array(document.text)]
    return TokenStream(np.concatenate(pieces), max_seq_len, 0 if eos is None else eos)
