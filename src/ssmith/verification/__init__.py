"""Proofs on the user's own model: gradients, backends, and ways of reading that must give the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import torch

from ssmith.config import ModelConfig
from ssmith.config.schema import check_seed
from ssmith.models import HybridLM
from ssmith.verification.backends import COMPILED, backend_rows
from ssmith.verification.equalities import EQUALITIES
from ssmith.verification.gradients import GradientProof
from ssmith.verification.report import VerifyReport, VerifyRow
from ssmith.verification.subject import Subject, borrowed, check_finite

__all__ = ["Progress", "VerifyReport", "VerifyRow", "verify"]

Progress = Callable[[int, int, str], None]
Proof = tuple[str, Callable[[], list[VerifyRow]]]


def verify(
    model_or_config: HybridLM | ModelConfig, *, seed: int = 0, progress: Progress | None = None
) -> VerifyReport:
    """Proves, in float64 on the model's own weights, that its gradients and its ways of reading are right.

    Every parameter's gradient, as `ssmith.gradients` gives it, is compared with finite differences of the
    loss; reading in pieces, padded, packed, batched, checkpointed and in training mode with reading whole;
    every compiled backend that can run here, in float32, with the float64 reference.

    Args:
        model_or_config: a model, which is proved as it stands, hooks and adapters included, and given back
            untouched; or settings, from which one is built with `seed`.
        seed: of the token ids and directions, and of a model that is built.
        progress: called with (proofs done, of how many, which comes next), at the end with "".

    Returns:
        A report: `.ok`, `.rows`, `.seconds`, `.to_text()`. A proof that fails is a row, not an exception.

    Raises:
        ValueError: neither a model nor settings, or a weight that is not finite (named).
    """
    check_seed(seed)
    start = time.perf_counter()
    model = _build(model_or_config, seed)
    check_finite(model)
    rows: list[VerifyRow] = []
    with borrowed(model, seed) as subject:
        proofs = list(_proofs(subject))
        for done, (what, prove) in enumerate(proofs):
            if progress is not None:
                progress(done, len(proofs), what)
            rows.extend(prove())
        if progress is not None:
            progress(len(proofs), len(proofs), "")
    return VerifyReport(tuple(rows), time.perf_counter() - start)


def _proofs(subject: Subject) -> Iterator[Proof]:
    """Every proof with its name, in order."""
    gradients = GradientProof(subject)
    for name in subject.parameters:
        yield f"gradient {name}", partial(gradients.rows, name)
    for what, equality in EQUALITIES:
        yield what, lambda equality=equality: list(equality(subject))
    for backend in COMPILED:
        yield f"backend {backend}", lambda backend=backend: list(backend_rows(subject, backend))


def _build(model_or_config: HybridLM | ModelConfig, seed: int) -> HybridLM:
    if isinstance(model_or_config, HybridLM):
        return model_or_config
    if not isinstance(model_or_config, ModelConfig):
        raise ValueError(
            f"verify takes a HybridLM or a ModelConfig, got {type(model_or_config).__name__}; "
            "ssmith.load opens a model's folder, a recipe's settings are its .model"
        )
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return HybridLM(model_or_config)
