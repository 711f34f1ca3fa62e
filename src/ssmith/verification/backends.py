"""Each compiled backend that can run here, in float32, against the float64 reference of the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ssmith.ops.dispatch import BACKENDS
from ssmith.verification.differences import (
    difference,
    gradient_difference,
    gradient_differences,
    state_tensors,
    worst,
)
from ssmith.verification.equalities import DOCUMENTS, pack
from ssmith.verification.report import VerifyRow, row
from ssmith.verification.subject import Inputs, Subject, backend_modules

COMPILED = tuple(b for b in BACKENDS if b not in ("auto", "reference"))
TOLERANCE = 5e-6
FLOOR = 1e-4  # float32 rounds activations to 6e-8: that share of the largest gradient is in every gradient
BATCH, TIME = 2, 37  # no multiple of a kernel's chunk


class Served(NamedTuple):
    """The modules whose operator a backend serves, and the reasons of the others."""

    modules: list[Any]
    refusals: list[str]


class Measured(NamedTuple):
    """What is compared: of plain rows, of packed documents, and of reading on from a state."""

    loss: Tensor
    gradients: dict[str, Tensor]
    documents: dict[str, Tensor]
    logits: Tensor
    state: list[Tensor]


def backend_rows(subject: Subject, backend: str) -> Iterator[VerifyRow]:
    """Loss and every gradient with one backend in every operator that has it."""
    check = f"backend {backend}"
    rows = subject.random_inputs(BATCH, TIME)
    documents = [subject.random_inputs(1, 3 * t) for t in DOCUMENTS]
    try:
        subject.cast(torch.float32)
        served = _served(subject, backend, rows)
        if not served.modules:
            yield row(check, "not run", 0.0, TOLERANCE, detail="; ".join(served.refusals))
            return
        _use(subject, backend, served)
        found = _measure(subject, rows, documents)
        subject.cast(torch.float64, rounded_to=torch.float32)
        subject.set_backend("reference")
        expected = _measure(subject, rows, documents)
    finally:
        subject.cast(torch.float64)
        subject.set_backend("reference")
    operators = ", ".join(sorted({type(m).__name__ for m in served.modules}))
    yield row(check, "loss", difference(found.loss, expected.loss), TOLERANCE, detail=f"serves {operators}")
    for name, error in gradient_differences(found.gradients, expected.gradients, FLOOR).items():
        yield row(check, name, error, TOLERANCE, tuple(subject.parameters[name].shape))
    error, parameter = gradient_difference(found.documents, expected.documents, FLOOR)
    yield row(check, "packed documents: gradients", error, TOLERANCE, detail=f"worst: {parameter}")
    yield row(check, "from a state: logits", difference(found.logits, expected.logits), TOLERANCE)
    error = worst(difference(a, b) for a, b in zip(found.state, expected.state, strict=True))
    yield row(check, "from a state: state", error, TOLERANCE)


def _served(subject: Subject, backend: str, inputs: Inputs) -> Served:
    """Asks every kind of module by running the model with the backend in that kind only."""
    kinds: dict[type, list[Any]] = {}
    for module in backend_modules(subject.model):
        kinds.setdefault(type(module), []).append(module)
    modules, refusals = [], []
    for kind in kinds.values():
        subject.set_backend("reference")
        for module in kind:
            module.backend = backend
        try:
            subject.gradients(inputs.ids[:1, :2], inputs.targets[:1, :2])
        except ValueError as refusal:  # what dispatch raises, with the reason
            refusals.append(str(refusal))
        else:
            modules.extend(kind)
    return Served(modules, refusals)


def _use(subject: Subject, backend: str, served: Served) -> None:
    subject.set_backend("reference")
    for module in served.modules:
        module.backend = backend


def _measure(subject: Subject, rows: Inputs, documents: list[Inputs]) -> Measured:
    loss, gradients = subject.gradients(*rows)
    packed, borders = pack(documents)
    _, of_documents = subject.gradients(*packed, cu_seqlens=borders)
    with torch.no_grad():
        half = rows.ids.shape[1] // 2
        state = subject.model(rows.ids[:, :half], logits=False).state
        out = subject.model(rows.ids[:, half:], state=state)
    return Measured(loss, gradients, of_documents, out.logits, list(state_tensors(out.state)))
