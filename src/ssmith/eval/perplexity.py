"""Perplexity and bits per byte of a text, read document by document with the state carried on."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ssmith.data import Document, Tokenizer, as_documents
from ssmith.models import HybridLM

SEGMENT = 4096  # tokens read at once: bounds memory; the state carries on, so it changes nothing else


@dataclass(frozen=True)
class EvalReport:
    """What a model makes of a text.

    Attributes:
        loss: mean cross-entropy per token, nats.
        perplexity: its exponential.
        bits_per_byte: all cross-entropy in bits over the text's UTF-8 bytes; comparable between tokenizers.
        accuracy: share of tokens that the model found likeliest.
        tokens, bytes, documents: how much was read.
        seconds, tokens_per_second: how fast.
    """

    loss: float
    perplexity: float
    bits_per_byte: float
    accuracy: float
    tokens: int
    bytes: int
    documents: int
    seconds: float
    tokens_per_second: float


@torch.no_grad()
def evaluate(
    model: HybridLM, data: str | Path | Sequence[Document | str], tokenizer: Tokenizer | None = None
) -> EvalReport:
    """Reads every document from its start, whole, and measures how well each token was foretold.

    Each document begins with the end-of-text token where the tokenizer has one, so that its first token is
    foretold too; otherwise the first token of a document is given and not counted.

    Args:
        data: a path as `ssmith.data.read_documents` takes it, or documents or texts.
        tokenizer: the model's own if None.
    """
    if not isinstance(model, HybridLM):
        raise ValueError(f"evaluate takes a HybridLM (ssmith.load gives one), got {type(model).__name__}")
    tokenizer = tokenizer or model.tokenizer
    if tokenizer is None:
        raise ValueError("the model has no tokenizer: load it from a folder with tokenizer.json, or pass one")
    documents = as_documents(data)
    start = time.perf_counter()
    nats, right, tokens, size = 0.0, 0, 0, 0
    for document in documents:
        ids = torch.tensor(_with_start(tokenizer, document.text), device=model.embedding.weight.device)[None]
        if ids.shape[1] < 2:
            continue
        document_nats, document_right = _read(model, ids)
        nats += document_nats
        right += document_right
        tokens += ids.shape[1] - 1
        size += len(document.text.encode())
    if tokens == 0:
        raise ValueError("nothing to evaluate: no document has a token that can be foretold")
    loss, seconds = nats / tokens, time.perf_counter() - start
    return EvalReport(
        loss=loss,
        perplexity=math.exp(min(loss, 700.0)),
        bits_per_byte=nats / math.log(2) / size,
        accuracy=right / tokens,
        tokens=tokens,
        bytes=size,
        documents=len(documents),
        seconds=seconds,
        tokens_per_second=tokens / seconds,
    )


def _with_start(tokenizer: Tokenizer, text: str) -> list[int]:
    start = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    return start + tokenizer.encode(text)


def _read(model: HybridLM, ids_1T: torch.Tensor) -> tuple[float, int]:
    """Summed cross-entropy in nats, and how many targets were the likeliest token."""
    state, nats, right = None, 0.0, 0
    for begin in range(0, ids_1T.shape[1] - 1, SEGMENT):
        targets = ids_1T[:, begin + 1 : begin + 1 + SEGMENT]
        out = model(ids_1T[:, begin : begin + targets.shape[1]], state=state)
        state = out.state
        logits = out.logits[0].float()
        nats += float(torch.nn.functional.cross_entropy(logits, targets[0], reduction="sum").double())
        right += int((logits.argmax(-1) == targets[0]).sum())
    return nats, right
