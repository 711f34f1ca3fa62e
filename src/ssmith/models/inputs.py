"""What goes into a language model: checks of ids and targets, and padding and labels made into plain rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ssmith.ops.shapes import check_documents

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
    _check_shape_of_ids(ids)
    if targets is not None and labels is not None:
        raise ValueError("give targets (what each position predicts) or labels (shifted inside), not both")
    wanted = targets if targets is not None else labels
    if wanted is not None and (wanted.shape != ids.shape or wanted.dtype not in (torch.int64, torch.int32)):
        raise ValueError(
            f"targets and labels must be integers of ids' shape {tuple(ids.shape)}, "
            f"got {wanted.dtype} {tuple(wanted.shape)}"
        )
    if attention_mask is not None and cu_seqlens is not None:
        raise ValueError("give attention_mask (padded rows) or cu_seqlens (packed documents), not both")
    check_documents("model", cu_seqlens, *ids.shape)
    kept = None if attention_mask is None else _real_tokens(attention_mask, ids)
    check_range("token id", ids, vocab_size, kept)
    if wanted is not None:
        counted = wanted != IGNORE_INDEX
        check_range("target", wanted, vocab_size, counted if kept is None else counted & kept)
        wanted = wanted.long()
    if kept is not None:
        ids, cu_seqlens = ids[kept][None], _borders(kept)
        wanted = None if wanted is None else wanted[kept][None]
    if wanted is not None:
        wanted = wanted if targets is not None else shift_labels(wanted, cu_seqlens)
        _check_some_count(wanted)
    return Rows(ids, wanted, cu_seqlens, kept)


def shift_labels(labels_BT: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Targets from labels: position t is to predict labels[t + 1] of its own document, the last nothing."""
    targets = torch.full_like(labels_BT, IGNORE_INDEX)
    targets[:, :-1] = labels_BT[:, 1:]
    if cu_seqlens is not None:
        targets[:, cu_seqlens[1:].long() - 1] = IGNORE_INDEX
    return targets


def _real_tokens(attention_mask: Tensor, ids: Tensor) -> Tensor | None:
    """The mask of real tokens, or None when all are."""
    if attention_mask.shape != ids.shape:
        raise ValueError(
            f"attention_mask must have ids' shape {tuple(ids.shape)}, got {tuple(attention_mask.shape)}"
        )
    kept = attention_mask.bool()
    if bool(kept.all()):
        return None
    lengths = kept.sum(1)
    if int(lengths.min()) == 0:
        raise ValueError(f"row {int(lengths.argmin())} of attention_mask has no real token")
    return kept


def _borders(kept_BT: Tensor) -> Tensor:
    """cu_seqlens of the real tokens, one document a row."""
    borders = torch.zeros(len(kept_BT) + 1, dtype=torch.int32, device=kept_BT.device)
    borders[1:] = kept_BT.sum(1).cumsum(0)
    return borders


def _check_shape_of_ids(ids: Tensor) -> None:
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
        kind = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise ValueError(f"ids must be a tensor of int64 or int32, got {kind}")
    if ids.dim() != 2 or ids.numel() == 0:
        raise ValueError(f"ids must be (batch, time) with at least one token, got shape {tuple(ids.shape)}")


def _check_some_count(targets: Tensor) -> None:
    if _can_look(targets) and not bool((targets != IGNORE_INDEX).any()):
        raise ValueError(f"no target counts: every one is {IGNORE_INDEX} (one token alone predicts nothing)")


def check_range(what: str, values_BT: Tensor, vocab_size: int, counted: Tensor | None) -> None:
    """On a CPU, raises ValueError at the first value outside [0, vocab_size), with its place.

    `counted` (B, T) says which values matter; None: all.
    """
    if not _can_look(values_BT):
        return
    wrong = (values_BT < 0) | (values_BT >= vocab_size)
    if counted is not None:
        wrong = wrong & counted
    if bool(wrong.any()):
        row, time = (int(i) for i in wrong.nonzero()[0])
        raise ValueError(
            f"{what} {int(values_BT[row, time])} at row {row}, position {time} "
            f"is outside the vocabulary [0, {vocab_size})"
        )


def _can_look(values: Tensor) -> bool:
    """Whether values may be read: on a GPU that would wait for it, and torch.compile cannot."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()
