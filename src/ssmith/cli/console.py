"""What a training run looks like: a panel, lines, a bar on a terminal, and what to try next."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping

from rich.console import Console
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ssmith.cli.notes import show_log_messages
from ssmith.eval import EvalReport
from ssmith.training.loop import TrainReport
from ssmith.training.reporter import Reporter, RunSummary


class PatientConsole(Console):
    """A console that falls silent when its reader is gone (`| head`), where rich would end the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class ConsoleReporter(Reporter):
    """Prints a run. Without a terminal: the same lines, no bar, no colour."""

    def __init__(self, console: Console | None = None) -> None:
        # highlight=False: numbers in the lines keep one colour
        self.console = console or PatientConsole(highlight=False, markup=False, emoji=False)
        self.progress: Progress | None = None
        self.window: list[Mapping[str, float | int]] = []
        self.log_every = 1

    def start(self, summary: RunSummary) -> None:
        show_log_messages(self.console)
        self.log_every = summary.log_every
        self.console.print(Panel(_describe(summary), title="ssmith train", title_align="left", expand=False))
        if not self.console.is_terminal:
            return
        self.progress = Progress(
            TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("ETA"), TimeRemainingColumn(), console=self.console, transient=True,
        )  # fmt: skip
        self.progress.add_task("train", total=summary.steps)
        self.progress.start()

    def step(self, row: Mapping[str, float | int], total: int) -> None:
        self.window.append(row)
        if self.progress is not None:
            self.progress.update(self.progress.task_ids[0], completed=row["step"])
        step = int(row["step"])
        if step == 1 or step % self.log_every == 0 or step == total:
            self._line(_step_line(self.window, total))
            self.window = []

    def validation(self, step: int, report: EvalReport) -> None:
        self._line(
            f"val   {step:>6}  loss {report.loss:.4f}  perplexity {report.perplexity:.2f}  "
            f"bpb {report.bits_per_byte:.4f}  accuracy {report.accuracy:.1%}",
            style="cyan",
        )

    def stop(self) -> None:
        """Takes the bar away; safe to call at any time."""
        if self.progress is not None:
            self.progress.stop()
            self.progress = None

    def end(self, report: TrainReport) -> None:
        self.stop()
        if report.out is not None:
            self._line(f"save  {report.steps:>6}  {report.out}", style="green")
        self._line(
            f"done: {report.steps} steps, {report.tokens:,} tokens in {_time(report.seconds)} "
            f"({report.tokens_per_second:,.0f} tok/s), peak memory {report.peak_gib:.2f} GiB\n"
            f"      final loss {report.losses[-1]:.4f}, validation loss {report.validation.loss:.4f} "
            f"(best {report.best_validation_loss:.4f}), {report.validation.bits_per_byte:.4f} bits per byte"
        )
        if report.out is not None:
            command = f"ssmith generate {shlex.quote(report.out)}"
            self._line(f'try:  {command} -p "It was" --temperature 0.8', style="bold")

    def _line(self, text: str, style: str | None = None) -> None:
        self.console.print(text, style=style, soft_wrap=True)


def _describe(s: RunSummary) -> str:
    layers = ", ".join(f"{n} x {name}" for name, n in Counter(s.layers).items())
    share = "all trainable" if s.trainable == s.parameters else f"{s.trainable / s.parameters:.1%} trainable"
    accumulated = "" if s.micro_batch_size == s.batch_size else f" (in micro-batches of {s.micro_batch_size})"
    return "\n".join(
        [
            f"model   {s.parameters:,} parameters, {share}; {layers}, hidden {s.hidden_size}, "
            f"vocabulary {s.vocab_size}",
            f"data    {s.tokens_per_epoch:,} tokens in {s.train_documents} documents, "
            f"{s.validation_documents} more for validation",
            f"batch   {s.batch_size} rows x {s.max_seq_len} tokens{accumulated}; {s.steps} steps "
            f"= {s.epochs:.2f} epochs",
            f"device  {s.device}, {s.threads} threads, {s.dtype}; selective_scan: {s.scan_backend}",
            f"out     {s.out or '(nothing is written)'}",
        ]
    )


def _step_line(window: list[Mapping[str, float | int]], total: int) -> str:
    """One line for some steps: mean loss, mean speed, the rest from the last."""
    last = window[-1]
    loss = sum(row["train/loss"] for row in window) / len(window)
    speed = len(window) / sum(1 / row["train/tokens_per_second"] for row in window)
    return (
        f"step  {int(last['step']):>6}/{total}  loss {loss:.4f}  lr {last['train/lr']:.2e}  "
        f"grad_norm {last['train/grad_norm']:.3f}  tok/s {speed:,.0f}  mem {last['memory/peak_gib']:.2f} GiB"
    )


def _time(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)  # rounded first: never "4 min 60 s"
    return f"{minutes} min {rest} s"
