"""What a training run tells whoever watches it. The base class is silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ssmith.config import TrainConfig
from ssmith.data import BatchLoader, Document
from ssmith.eval import EvalReport
from ssmith.models import HybridLM
from ssmith.ops.selective_scan import selective_scan_backend

if TYPE_CHECKING:
    from ssmith.training.loop import TrainReport


@dataclass(frozen=True)
class RunSummary:
    """What is about to run; sizes in numbers, tokens are targets."""

    parameters: int
    trainable: int
    layers: tuple[str, ...]
    hidden_size: int
    vocab_size: int
    train_documents: int
    validation_documents: int
    tokens_per_epoch: int
    steps: int
    epochs: float
    batch_size: int
    micro_batch_size: int
    max_seq_len: int
    dtype: str
    device: str
    threads: int
    scan_backend: str
    log_every: int
    out: str | None

    @classmethod
    def of(
        cls,
        model: HybridLM,
        config: TrainConfig,
        loader: BatchLoader,
        trained: Sequence[Document],
        held_out: Sequence[Document],
        steps: int,
    ) -> RunSummary:
        sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
        micro = min(config.micro_batch_size or config.batch_size, config.batch_size)
        weight = model.embedding.weight
        scan = selective_scan_backend(weight[None], backend=config.backend)
        return cls(
            parameters=sum(n for n, _ in sizes),
            trainable=sum(n for n, grad in sizes if grad),
            layers=model.config.layers,
            hidden_size=model.config.hidden_size,
            vocab_size=model.config.vocab_size,
            train_documents=len(trained),
            validation_documents=len(held_out),
            tokens_per_epoch=loader.tokens_per_epoch,
            steps=steps,
            epochs=steps / loader.batches_per_epoch,
            batch_size=config.batch_size,
            micro_batch_size=micro,
            max_seq_len=config.max_seq_len,
            dtype=config.dtype,
            device=str(weight.device),
            threads=torch.get_num_threads(),
            scan_backend=f"{scan.backend} ({scan.why})",
            log_every=config.log_every,
            out=config.out,
        )


class Reporter:
    """Hears what happens; every method does nothing here."""

    def start(self, summary: RunSummary) -> None:
        """Before the first step."""

    def step(self, row: Mapping[str, float | int], total: int) -> None:
        """After each step, with its row of metrics."""

    def validation(self, step: int, report: EvalReport) -> None:
        """After each validation."""

    def end(self, report: TrainReport) -> None:
        """After the last step, when everything is on disk."""
