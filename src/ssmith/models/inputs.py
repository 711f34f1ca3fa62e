"""What goes into a language model: checks of ids and targets, and padding and labels made into plain rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

IGNORE_INDEX = -100


class Rows(NamedTuple):
    """Token ids (B, T), the targets of their positions, document borders, and where padding left gaps.

    `kept` is the boolean (B, T) mask of real tokens that were packed into one row, or None.
    """

    ids: Tensor
    targets: Tensor | None
    cu_seqlens: Tensor | None
    kept: Tensor | None


def prepare_rows(
    ids: Tensor,
    targets: Tensor | None,
    labels: Tensor | None,
    attention_mask: Tensor | None,
    cu_seqlens: Tensor | None,
    vocab_size: int,
) -> Rows:
    """Checks everything a call of the model was given and reduces it to ids, targets and borders.

    Padding is taken out: the real tokens of a padded batch become documents of one row, so that what stands
    in the pads cannot matter. Labels become targets: each is to be predicted one position earlier, and the
    first of a document nowhere.
    """
    _check_ids(ids, vocab_size)
    if targets is not None and labels is not None:
        raise ValueError(
            "give targets (what to predict at each position) or labels (shifted inside), not both"
        )
    wanted = targets if targets is not None else labels
    if wanted is not None and (wanted.shape != ids.shape or wanted.dtype not in (torch.int64, torch.int32)):
        raise ValueError(
            f"targets and labels must be integers of ids' shape {tuple(ids.shape)}, "
            f"got {wanted.dtype} {tuple(wanted.shape)}"
        )
    if wanted is not None:
        wanted = wanted.long()
    kept = None
    if attention_mask is not None:
        if cu_seqlens is not None:
            raise ValueError("give attention_mask (padded rows) or cu_seqlens (packed documents), not both")
        kept, cu_seqlens = _packing(attention_mask, ids)
    if kept is not None:
        ids = ids[kept][None]
        wanted = None if wanted is None else wanted[kept][None]
    if wanted is not None and targets is None:
        wanted = shift_labels(wanted, cu_seqlens)
    if wanted is not None:
        _check_targets(wanted, vocab_size)
    return Rows(ids, wanted, cu_seqlens, kept)


def shift_labels(labels_BT: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Targets from labels: position t is to predict labels[t + 1] of its own document, the last nothing."""
    targets = torch.full_like(labels_BT, IGNORE_INDEX)
    targets[:, :-1] = labels_BT[:, 1:]
    if cu_seqlens is not None:
        targets[:, cu_seqlens[1:].long() - 1] = IGNORE_INDEX
    return targets


def _packing(attention_mask: Tensor, ids: Tensor) -> tuple[Tensor | None, Tensor | None]:
    if attention_mask.shape != ids.shape:
        raise ValueError(
            f"attention_mask must have ids' shape {tuple(ids.shape)}, got {tuple(attention_mask.shape)}"
        )
    kept = attention_mask.bool()
    if bool(kept.all()):
        return None, None
    lengths = kept.sum(1)
    if int(lengths.min()) == 0:
        raise ValueError(f"row {int(lengths.argmin())} of attention_mask has no real token")
    borders = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=ids.device)
    borders[1:] = lengths.cumsum(0)
    return kept, borders


def _check_ids(ids: Tensor, vocab_size: int) -> None:
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
        kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"ids must be a tensor of int64 or int32, got {kind}")
    if ids.dim() != 2 or ids.numel() == 0:
        raise ValueError(f"ids must be (batch, time) with at least one token, got shape {tuple(ids.shape)}")
    check_range("token id", ids, vocab_size, torch.ones_like(ids, dtype=torch.bool))


def _check_targets(targets: Tensor, vocab_size: int) -> None:
    counted = targets != IGNORE_INDEX
    if targets.device.type == "cpu" and not bool(counted.any()):
        raise ValueError(f"no target counts: every one is {IGNORE_INDEX} (one token alone predicts nothing)")
    check_range("target", targets, vocab_size, counted)


def check_range(what: str, values_BT: Tensor, vocab_size: int, counted: Tensor) -> None:
    """On a CPU, raises ValueError at the first counted value outside [0, vocab_size), with its place.

    On a GPU looking at values would wait for the device; there the embedding asserts.
    """
    if values_BT.device.type != "cpu" or torch.compiler.is_compiling():
        return
    wrong = ((values_BT < 0) | (values_BT >= vocab_size)) & counted
    if bool(wrong.any()):
        row, time = (int(i) for i in wrong.nonzero()[0])
        raise ValueError(
            f"{what} {int(values_BT[row, time])} at row {row}, position {time} "
            f"is outside the vocabulary [0, {vocab_size})"
        )
