"""Broken ways of reading are caught by the row that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import ssmith.models.blocks.mamba1 as mamba1
import ssmith.models.lm as lm
from ssmith.models import HybridLM
from ssmith.verification.equalities import (
    batch_is_rows,
    checkpointed_is_whole,
    packed_is_alone,
    padded_is_unpadded,
    split_is_whole,
    training_is_evaluation,
)
from ssmith.verification.report import VerifyRow
from ssmith.verification.subject import Subject, borrowed


def failures(model: HybridLM, equality: Callable[[Subject], Iterator[VerifyRow]]) -> set[str]:
    with borrowed(model, 0) as subject:
        return {r.name for r in equality(subject) if not r.ok}


def change_scan(monkeypatch: pytest.MonkeyPatch, change: Callable[..., Any]) -> None:
    right = mamba1.selective_scan
    monkeypatch.setattr(mamba1, "selective_scan", lambda *a, **k: change(right, *a, **k))


def test_a_mixer_that_drops_its_state_is_caught(plain: HybridLM, monkeypatch: pytest.MonkeyPatch) -> None:
    change_scan(monkeypatch, lambda scan, *a, **k: scan(*a, **{**k, "initial_state": None}))
    assert failures(plain, split_is_whole) == {
        f"{how}: {what}" for how in ("pieces", "one token at a time") for what in ("logits", "state")
    }


def test_documents_that_leak_are_caught(plain: HybridLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def leak(scan: Callable[..., Any], *args: Any, cu_seqlens: torch.Tensor | None, **rest: Any) -> Any:
        y, state = scan(*args, cu_seqlens=None, **rest)
        return y, state if cu_seqlens is None else state.expand(len(cu_seqlens) - 1, -1, -1)

    change_scan(monkeypatch, leak)
    assert failures(plain, packed_is_alone) == {"logits", "state", "gradients", "influence"}
    assert "left: logits" in failures(plain, padded_is_unpadded)


def test_a_leak_of_the_smallest_size_is_caught(plain: HybridLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def leak(scan: Callable[..., Any], *args: Any, cu_seqlens: torch.Tensor | None, **rest: Any) -> Any:
        y, state = scan(*args, cu_seqlens=cu_seqlens, **rest)
        return (y, state) if cu_seqlens is None else (y + 1e-14 * y.mean(), state)

    change_scan(monkeypatch, leak)
    assert failures(plain, packed_is_alone) == {"influence"}


def test_pads_that_are_read_are_caught(plain: HybridLM, monkeypatch: pytest.MonkeyPatch) -> None:
    right = lm.prepare_rows
    monkeypatch.setattr(lm, "prepare_rows", lambda ids, t, l, mask, c, v: right(ids, t, l, None, c, v))
    assert failures(plain, padded_is_unpadded) >= {
        "left: logits",
        "left: state",
        "left: gradients",
        "right: state",
    }


def test_rows_that_see_each_other_are_caught(plain: HybridLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def mix(scan: Callable[..., Any], *args: Any, **rest: Any) -> Any:
        y, state = scan(*args, **rest)
        return y + 1e-6 * y.mean(0, keepdim=True), state

    change_scan(monkeypatch, mix)
    assert failures(plain, batch_is_rows) == {"logits", "state"}


def test_checkpointing_one_bit_off_is_caught(plain: HybridLM, monkeypatch: pytest.MonkeyPatch) -> None:
    right = lm.checkpoint

    def wrong(layer: Any, x: torch.Tensor, *rest: Any, **options: Any) -> Any:
        y, state = right(layer, x, *rest, **options)
        return y * (1 + 2 * torch.finfo(y.dtype).eps), state

    monkeypatch.setattr(lm, "checkpoint", wrong)
    assert failures(plain, checkpointed_is_whole) == {"float64", "float32"}


def test_a_mode_that_matters_is_caught(plain: HybridLM) -> None:
    plain.final_norm.register_forward_hook(lambda m, a, y: y * (1 + 1e-12) if m.training else y)
    assert failures(plain, training_is_evaluation) == {"logits and state"}


def test_dropout_is_left_out(plain: HybridLM) -> None:
    plain.layers[0].norm = torch.nn.Sequential(plain.layers[0].norm, torch.nn.Dropout(0.5))  # pyright: ignore
    assert failures(plain.train(), training_is_evaluation) == set()
    assert plain.layers[0].norm[1].training  # pyright: ignore


def test_right_equalities_leave_no_failure(everything: HybridLM) -> None:
    for equality in (split_is_whole, padded_is_unpadded, packed_is_alone, batch_is_rows):
        assert failures(everything, equality) == set()
