"""The training loop: batches in, a trained model and a report out."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ssmith.config import ModelConfig, TrainConfig
from ssmith.data import (
    Batch,
    BatchLoader,
    Document,
    Tokenizer,
    as_documents,
    byte_tokenizer,
    pack_documents,
    shipped_corpus,
    split_documents,
)
from ssmith.eval import EvalReport, evaluate
from ssmith.models import HybridLM
from ssmith.training.metrics import MetricsFile, peak_memory_gib
from ssmith.training.optim import NonFiniteGradientError, clip_gradients, make_optimizer
from ssmith.training.reporter import Reporter, RunSummary
from ssmith.training.run_folder import discard, prepare_folder, save_run
from ssmith.training.schedule import learning_rate


@dataclass(frozen=True)
class TrainReport:
    """What a run did.

    Attributes:
        steps, tokens: optimizer steps done and targets learned from.
        losses: mean cross-entropy of every step, nats per token.
        validation: the last validation; best_validation_loss: the lowest loss of all.
        seconds: of the whole run, validation included; tokens_per_second: of the training steps alone.
        peak_gib: most resident memory of the process.
        out: the folder, or None.
    """

    steps: int
    tokens: int
    losses: tuple[float, ...]
    validation: EvalReport
    best_validation_loss: float
    seconds: float
    tokens_per_second: float
    peak_gib: float
    out: str | None


def train(
    model: HybridLM | ModelConfig,
    data: str | Path | Sequence[Document | str] | None,
    config: TrainConfig | None = None,
    *,
    reporter: Reporter | None = None,
) -> TrainReport:
    """Trains a model on text, in place.

    Args:
        model: the model, or the settings of one, which is then made from `config.seed`. Without a tokenizer
            it gets the byte tokenizer.
        data: a path as `ssmith.data.read_documents` takes it, documents, texts, or None: what ships.
        config: how; see `TrainConfig`.
        reporter: is told what happens, for a console; None: silence.

    Raises:
        ValueError: data that cannot be read, a vocabulary that does not fit, an output folder that is not
            empty, a loss or gradient that is not finite (the message names the step and the parameter; no
            weight has then been touched by that step).
    """
    config = TrainConfig() if config is None else config
    if not isinstance(config, TrainConfig) or not isinstance(model, HybridLM | ModelConfig):
        raise ValueError(
            "train takes a HybridLM or a ModelConfig, and a TrainConfig; "
            f"got {type(model).__name__} and {type(config).__name__}"
        )
    start = time.perf_counter()
    if isinstance(model, ModelConfig):
        torch.manual_seed(config.seed)
        model = HybridLM(model)
    documents = _documents(data)
    tokenizer = _tokenizer(model)
    trained, held_out = split_documents(documents, config.validation_fraction)
    stream = pack_documents(trained, tokenizer, config.max_seq_len)
    loader = BatchLoader(stream, config.batch_size, config.seed, vocab_size=model.config.vocab_size)
    total = config.steps or math.ceil((config.epochs or 1) * loader.batches_per_epoch)
    out = prepare_folder(config, model.config, data)
    model.set_backend(config.backend)
    model.set_activation_checkpointing(config.activation_checkpointing)
    reporter = reporter or Reporter()
    reporter.start(RunSummary.of(model, config, loader, trained, held_out, total))
    run = _Run(model, config, loader, held_out, total, reporter)
    metrics = MetricsFile(None if out is None else out / "metrics.jsonl")
    finished = False
    try:
        for row in run.steps():
            metrics.write(row)
        finished = True
    finally:
        metrics.close()
        if out is not None and not finished:
            discard(out)
    report = run.report(time.perf_counter() - start)
    if out is not None:
        save_run(model, out)
    reporter.end(report)
    return report


class _Run:
    """One run in progress."""

    def __init__(
        self,
        model: HybridLM,
        config: TrainConfig,
        loader: BatchLoader,
        held_out: Sequence[Document],
        total: int,
        reporter: Reporter,
    ) -> None:
        self.model, self.config, self.loader, self.held_out = model, config, loader, held_out
        self.total, self.reporter = total, reporter
        self.optimizer = make_optimizer(model, config.optim)
        self.losses: list[float] = []
        self.validations: list[EvalReport] = []
        self.tokens, self.training_seconds = 0, 0.0

    def steps(self) -> Iterator[dict[str, float | int]]:
        """Does every step; gives the row of metrics of each."""
        self.model.train()
        batches = iter(self.loader)
        for step in range(1, self.total + 1):
            row = self._step(step, next(batches))
            self.reporter.step(row, self.total)
            every = self.config.eval_every
            if step == self.total or (every and step % every == 0):
                row |= self._validate(step)
            yield row

    def _step(self, step: int, batch: Batch) -> dict[str, float | int]:
        begin = time.perf_counter()
        rate = learning_rate(step, self.total, self.config.optim)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss = accumulate_gradients(self.model, batch, self.config.micro_batch_size)
        if not math.isfinite(loss):
            raise NonFiniteGradientError(f"step {step}: the loss is {loss}; {_first_bad(self.model, rate)}")
        try:
            norm = clip_gradients(self.model.named_parameters(), self.config.optim.clip_norm)
        except NonFiniteGradientError as error:
            raise NonFiniteGradientError(f"step {step}: {error}; lower --lr (now {rate:.3g})") from error
        self.optimizer.step()
        seconds = time.perf_counter() - begin
        self.losses.append(loss)
        self.tokens += batch.tokens
        self.training_seconds += seconds
        return {
            "step": step,
            "train/loss": loss,
            "train/lr": rate,
            "train/grad_norm": norm,
            "train/tokens_per_second": batch.tokens / seconds,
            "train/tokens": self.tokens,
            "train/epoch": batch.epoch,
            "memory/peak_gib": peak_memory_gib(),
        }

    def _validate(self, step: int) -> dict[str, float | int]:
        self.model.eval()
        report = evaluate(self.model, self.held_out)
        self.model.train()
        self.validations.append(report)
        self.reporter.validation(step, report)
        return {"val/loss": report.loss, "val/bpb": report.bits_per_byte}

    def report(self, seconds: float) -> TrainReport:
        return TrainReport(
            steps=len(self.losses),
            tokens=self.tokens,
            losses=tuple(self.losses),
            validation=self.validations[-1],
            best_validation_loss=min(v.loss for v in self.validations),
            seconds=seconds,
            tokens_per_second=self.tokens / self.training_seconds,
            peak_gib=peak_memory_gib(),
            out=self.config.out,
        )


def accumulate_gradients(model: HybridLM, batch: Batch, micro_batch_size: int | None) -> float:
    """Adds the gradient of the batch's mean loss to `.grad`, micro-batch by micro-batch; gives that mean.

    Each micro-batch counts by its targets, so that the sum does not depend on how the batch is cut.
    """
    size = micro_batch_size or len(batch.ids)
    total = 0.0
    for ids, targets in zip(batch.ids.split(size), batch.targets.split(size), strict=True):
        share = _counted(targets) / batch.tokens
        if share == 0:
            continue
        loss = model(ids, targets=targets, logits=False).loss
        assert loss is not None
        (loss * share).backward()
        total += float(loss.detach()) * share
    return total


def _first_bad(model: HybridLM, rate: float) -> str:
    """Which weight, or else which gradient, is the first that is not finite, and what to do."""
    for name, p in model.named_parameters():
        if not bool(torch.isfinite(p).all()):
            return f"the weight {name} is not finite: take other weights, or lower --lr (now {rate:.3g})"
    for name, p in model.named_parameters():
        if p.grad is not None and not bool(torch.isfinite(p.grad).all()):
            return f"the gradient of {name} is not finite: lower --lr (now {rate:.3g})"
    return f"lower --lr (now {rate:.3g})"


def _counted(targets: Tensor) -> int:
    return int((targets >= 0).sum())


def _documents(data: str | Path | Sequence[Document | str] | None) -> list[Document]:
    if data is None:
        return shipped_corpus()
    return as_documents(data)


def _tokenizer(model: HybridLM) -> Tokenizer:
    if model.tokenizer is None:
        model.tokenizer = byte_tokenizer()
    if model.tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"the tokenizer has {model.tokenizer.vocab_size} ids, the model's vocabulary only "
            f"{model.config.vocab_size}: set vocab_size to at least {model.tokenizer.vocab_size}"
        )
    return model.tokenizer
