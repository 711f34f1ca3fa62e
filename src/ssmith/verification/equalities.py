"""Ways of reading that must give the same: in pieces, padded, packed, row by row, checkpointed, training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ssmith.models import LMState
from ssmith.verification.differences import (
    difference,
    gradient_difference,
    largest_difference,
    nan_last,
    state_tensors,
    worst,
)
from ssmith.verification.gradients import claimed_gradients
from ssmith.verification.report import VerifyRow, row
from ssmith.verification.subject import Inputs, Subject

VALUES = 1e-12  # of logits and states, in float64
GRADIENTS = 1e-10  # sums of per-token terms that nearly cancel, in another order
PIECES = (1, 5, 2, 4)
DOCUMENTS = (5, 1, 6, 2)
IGNORE = -100


class Read(NamedTuple):
    """Logits (1, T, V) and the state of one sequence read alone."""

    logits: Tensor
    state: LMState


@torch.no_grad()
def split_is_whole(subject: Subject) -> Iterator[VerifyRow]:
    """Reading in pieces with the state handed on, and one token at a time, gives logits and final state."""
    ids = subject.random_inputs(2, sum(PIECES)).ids
    whole = subject.model(ids)
    for how, pieces in (("pieces", PIECES), ("one token at a time", (1,) * ids.shape[1])):
        logits, state = [], None
        for piece in ids.split(pieces, 1):
            out = subject.model(piece, state=state)
            logits.append(out.logits)
            state = out.state
        assert state is not None
        yield row("split = whole", f"{how}: logits", difference(torch.cat(logits, 1), whole.logits), VALUES)
        yield row("split = whole", f"{how}: state", _states(state, whole.state), VALUES)


def padded_is_unpadded(subject: Subject) -> Iterator[VerifyRow]:
    """Rows padded left and right, whatever ids stand in the pads, give what the rows give alone."""
    rows = [subject.random_inputs(1, t) for t in (4, 9, 7)]
    time = max(r.ids.shape[1] for r in rows) + 1
    mean = _mean_gradients(subject, rows)
    for side in ("left", "right"):
        padded, mask = _pad(subject, rows, time, side)
        with torch.no_grad():
            alone = [Read(*_read(subject, r.ids)) for r in rows]
            out = subject.model(padded.ids, attention_mask=mask)
            other_pads = torch.where(mask.bool(), padded.ids, _other(subject, padded.ids))
            moved = subject.model(other_pads, attention_mask=mask)
        expected = torch.cat([a.logits for a in alone], 1)
        state = LMState.stack([a.state for a in alone])
        check = "padded = unpadded"
        yield row(check, f"{side}: logits", difference(out.logits[mask.bool()][None], expected), VALUES)
        yield row(check, f"{side}: state", _states(out.state, state), VALUES)
        _, found = subject.gradients(padded.ids, padded.targets, attention_mask=mask)
        yield _gradient_row(check, f"{side}: gradients", found, mean)
        influence = largest_difference([(moved.logits, out.logits), *_pairs(moved.state, out.state)])
        yield row(check, f"{side}: ids in the pads", influence, 0.0, detail="largest change")


def packed_is_alone(subject: Subject) -> Iterator[VerifyRow]:
    """Documents packed in one row give what they give alone, and none moves another by one bit."""
    documents = [subject.random_inputs(1, t) for t in DOCUMENTS]
    packed, borders = pack(documents)
    check = "packed = alone"
    with torch.no_grad():
        alone = [Read(*_read(subject, d.ids)) for d in documents]
        out = subject.model(packed.ids, cu_seqlens=borders)
    logits = torch.cat([a.logits for a in alone], 1)
    yield row(check, "logits", difference(out.logits, logits), VALUES)
    yield row(check, "state", _states(out.state, LMState.stack([a.state for a in alone])), VALUES)
    _, found = subject.gradients(packed.ids, packed.targets, cu_seqlens=borders)
    yield _gradient_row(check, "gradients", found, _mean_gradients(subject, documents))
    yield row(check, "influence", _influence(subject, packed.ids, borders), 0.0, detail="largest change")


@torch.no_grad()
def batch_is_rows(subject: Subject) -> Iterator[VerifyRow]:
    """A batch gives what each of its rows gives alone."""
    ids = subject.random_inputs(3, 7).ids
    out = subject.model(ids)
    alone = [Read(*_read(subject, r)) for r in ids.split(1)]
    check = "batch = rows alone"
    yield row(check, "logits", difference(out.logits, torch.cat([a.logits for a in alone])), VALUES)
    yield row(check, "state", _states(out.state, LMState.stack([a.state for a in alone])), VALUES)


def checkpointed_is_whole(subject: Subject) -> Iterator[VerifyRow]:
    """Gradients with activation checkpointing are the same to the last bit; float64, then float32."""
    inputs = subject.random_inputs(2, 9)
    for dtype, backend in ((torch.float64, "reference"), (torch.float32, "auto")):
        subject.cast(dtype)
        subject.set_backend(backend)
        whole = claimed_gradients(subject, inputs)
        again = claimed_gradients(subject, inputs, checkpointing=True)
        name = str(dtype).removeprefix("torch.")
        errors = {n: largest_difference([(again[n], g)]) for n, g in whole.items()}
        where = max(errors, key=lambda n: nan_last(errors[n]))
        detail = "to the last bit" if errors[where] == 0 else f"largest change, in {where}"
        yield row("checkpointed = whole", name, errors[where], 0.0, detail=detail)
    subject.cast(torch.float64)
    subject.set_backend("reference")


@torch.no_grad()
def training_is_evaluation(subject: Subject) -> Iterator[VerifyRow]:
    """train() gives what eval() gives, to the last bit; dropout, where there is some, is left out."""
    ids = subject.random_inputs(2, 7).ids
    model = subject.model
    evaluated = model(ids)
    dropout = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    try:
        model.train()
        for module in dropout:
            module.eval()
        trained = model(ids)
    finally:
        model.eval()
    error = largest_difference([(trained.logits, evaluated.logits), *_pairs(trained.state, evaluated.state)])
    detail = "dropout left out" if any(m.p > 0 for m in dropout) else "to the last bit"
    yield row("train() = eval()", "logits and state", error, 0.0, detail=detail)


EQUALITIES = (
    ("split = whole", split_is_whole),
    ("padded = unpadded", padded_is_unpadded),
    ("packed = alone", packed_is_alone),
    ("batch = rows alone", batch_is_rows),
    ("checkpointed = whole", checkpointed_is_whole),
    ("train() = eval()", training_is_evaluation),
)


def pack(documents: Sequence[Inputs]) -> tuple[Inputs, Tensor]:
    """All documents in one row, and their borders."""
    ids = torch.cat([d.ids for d in documents], 1)
    targets = torch.cat([d.targets for d in documents], 1)
    borders = [0]
    for d in documents:
        borders.append(borders[-1] + d.ids.shape[1])
    return Inputs(ids, targets), torch.tensor(borders, dtype=torch.int32, device=ids.device)


def _read(subject: Subject, ids: Tensor) -> tuple[Tensor, LMState]:
    out = subject.model(ids)
    return out.logits, out.state


def _mean_gradients(subject: Subject, rows: Sequence[Inputs]) -> dict[str, Tensor]:
    """The gradient of the mean over all tokens, from each row alone."""
    total = sum(r.ids.numel() for r in rows)
    mean = {n: torch.zeros_like(p) for n, p in subject.parameters.items()}
    for r in rows:
        for name, gradient in subject.gradients(r.ids, r.targets)[1].items():
            mean[name] += gradient * (r.ids.numel() / total)
    return mean


def _gradient_row(check: str, name: str, found: dict[str, Tensor], expected: dict[str, Tensor]) -> VerifyRow:
    error, parameter = gradient_difference(found, expected)
    return row(check, name, error, GRADIENTS, detail=f"worst: {parameter}")


def _pad(subject: Subject, rows: Sequence[Inputs], time: int, side: str) -> tuple[Inputs, Tensor]:
    ids = subject.random_inputs(len(rows), time).ids
    targets, mask = torch.full_like(ids, IGNORE), torch.zeros_like(ids)
    for i, r in enumerate(rows):
        length = r.ids.shape[1]
        kept = slice(time - length, time) if side == "left" else slice(0, length)
        ids[i, kept], targets[i, kept], mask[i, kept] = r.ids[0], r.targets[0], 1
    return Inputs(ids, targets), mask


def _other(subject: Subject, ids: Tensor) -> Tensor:
    """Another id everywhere (the same, where the vocabulary holds one only)."""
    return (ids + 1) % subject.model.config.vocab_size


@torch.no_grad()
def _influence(subject: Subject, ids: Tensor, borders: Tensor) -> float:
    """The largest change of a document's logits and state when every id of another one changes."""
    before = subject.model(ids, cu_seqlens=borders)
    pairs = []
    for i, (start, end) in enumerate(pairwise(borders.tolist())):
        changed = ids.clone()
        changed[:, start:end] = _other(subject, ids[:, start:end])
        after = subject.model(changed, cu_seqlens=borders)
        others = [d for d in range(len(borders) - 1) if d != i]
        kept = torch.ones_like(ids, dtype=torch.bool)
        kept[:, start:end] = False
        pairs.append((after.logits[kept], before.logits[kept]))
        pairs.extend(_pairs(after.state.select(others), before.state.select(others)))
    return largest_difference(pairs)


def _pairs(found: LMState, expected: LMState) -> list[tuple[Tensor, Tensor]]:
    return list(zip(state_tensors(found), state_tensors(expected), strict=True))


def _states(found: LMState, expected: LMState) -> float:
    """The largest of the relative differences of all tensors of a state."""
    return worst(difference(a, b) for a, b in _pairs(found, expected))
