"""Perplexity and bits per byte against sums made by hand."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import ssmith
from ssmith.data import Document, byte_tokenizer
from ssmith.eval import perplexity
from ssmith.models import HybridLM

TEXTS = [Document("Twelve words, é and all.", "a"), Document("x", "b"), Document("Another text." * 5, "c")]


@pytest.fixture
def model() -> HybridLM:
    torch.manual_seed(1)
    model = HybridLM(ssmith.ModelConfig(vocab_size=257, hidden_size=16))
    model.tokenizer = byte_tokenizer()
    return model


def summed_by_hand(model: HybridLM) -> tuple[float, int, int]:
    nats, tokens, right = 0.0, 0, 0
    model.requires_grad_(False)
    for text in TEXTS:
        ids = torch.tensor([[256, *text.text.encode()]])
        logits = model(ids[:, :-1]).logits[0].double().log_softmax(-1)
        nats -= float(logits.gather(-1, ids[0, 1:, None]).sum())
        right += int((logits.argmax(-1) == ids[0, 1:]).sum())
        tokens += ids.shape[1] - 1
    return nats, tokens, right


def test_figures_are_the_sums(model: HybridLM) -> None:
    report = ssmith.evaluate(model, TEXTS)
    nats, tokens, right = summed_by_hand(model)
    assert (report.tokens, report.bytes, report.documents) == (tokens, tokens, 3)
    assert report.loss == pytest.approx(nats / tokens, rel=1e-6)
    assert report.perplexity == pytest.approx(math.exp(nats / tokens), rel=1e-5)
    assert report.bits_per_byte == pytest.approx(nats / math.log(2) / tokens, rel=1e-6)
    assert report.accuracy == right / tokens


def test_long_documents_are_read_in_segments_with_the_state_carried(
    model: HybridLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ssmith.evaluate(model, TEXTS)
    monkeypatch.setattr(perplexity, "SEGMENT", 3)
    pieces = ssmith.evaluate(model, TEXTS)
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-6)
    assert pieces.tokens == whole.tokens


def test_reads_a_file(model: HybridLM, tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(TEXTS[0].text.encode())
    assert ssmith.evaluate(model, path).loss == ssmith.evaluate(model, TEXTS[:1]).loss


def test_errors(model: HybridLM) -> None:
    with pytest.raises(ValueError, match="nothing to evaluate"):
        ssmith.evaluate(model, [])
    model.tokenizer = None
    with pytest.raises(ValueError, match="no tokenizer"):
        ssmith.evaluate(model, TEXTS)
