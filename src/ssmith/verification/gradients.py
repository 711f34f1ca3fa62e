"""The gradient proof: each parameter's claimed gradient against finite differences of the loss."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor, nn

from ssmith.verification.differences import nan_last, worst
from ssmith.verification.finite_differences import Derivative, derivative, relative_error
from ssmith.verification.report import VerifyRow, row
from ssmith.verification.subject import Inputs, Subject

BATCH, TIME = 2, 6  # the reference is a loop over time; 6 steps fill the convolution and carry the state
TOLERANCE = 1e-6
STEP_OVER_RMS = 0.1  # first and largest change of one element, over the tensor's root mean square
SMALLEST_RMS = 0.02  # stands in for it where a tensor is zero, as biases are at the start
LARGEST_STEP = 0.25
KINK_MARGIN = 0.02  # elements nearer to a clamp than this are left where they are
ELEMENTS = 2  # the largest and a random one


def claimed_gradients(subject: Subject, inputs: Inputs, checkpointing: bool = False) -> dict[str, Tensor]:
    """What `ssmith.models.gradients` says; looked up when called, so that what replaces it is proved."""
    # import_module: the package's attribute of this name is the function, not the module
    module = import_module("ssmith.models.gradients")
    _, found = module.gradients(
        subject.model, inputs.ids, targets=inputs.targets, activation_checkpointing=checkpointing
    )
    return found


class GradientProof:
    """Perturbs one parameter after another and compares the change of the loss with the claimed gradient."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.inputs = subject.random_inputs(BATCH, TIME)
        self.claimed = claimed_gradients(subject, self.inputs)
        self.clamps = _clamps(subject.model)

    def rows(self, name: str) -> list[VerifyRow]:
        """The rows "gradient" and "elements" of one parameter."""
        parameter = self.subject.parameters[name]
        return _ParameterProof(self, name, parameter).rows()

    @torch.no_grad()
    def loss(self) -> float:
        ids, targets = self.inputs
        return float(self.subject.model(ids, targets=targets, logits=False).loss)


class _ParameterProof:
    def __init__(self, proof: GradientProof, name: str, parameter: nn.Parameter) -> None:
        self.name, self.parameter, self.loss, self.subject = name, parameter, proof.loss, proof.subject
        self.base = parameter.data.clone()
        claimed = proof.claimed.get(name)
        self.missing = claimed is None or claimed.shape != parameter.shape
        self.gradient = torch.full_like(self.base, torch.nan) if claimed is None else claimed.detach()
        self.room = _room(self.base, proof.clamps.get(id(parameter)))
        self.movable = self.room > KINK_MARGIN
        self.step = min(STEP_OVER_RMS * max(_rms(self.base), SMALLEST_RMS), LARGEST_STEP)

    def rows(self) -> list[VerifyRow]:
        shape = tuple(self.parameter.shape)
        if self.missing or not bool(torch.isfinite(self.gradient).all()):
            why = "no gradient of this shape is given" if self.missing else "the gradient is not finite"
            return [row("gradient", self.name, float("nan"), TOLERANCE, shape, why)]
        if not bool(self.movable.any()):
            return [row("gradient", self.name, self._past_clamp(), TOLERANCE, shape, self._detail([]))]
        error, detail = self._directions()
        whole = row("gradient", self.name, error, TOLERANCE, shape, detail)
        error, detail = self._elements()
        return [whole, row("elements", self.name, error, TOLERANCE, shape, detail)]

    def _directions(self) -> tuple[float, str]:
        """Along the claimed gradient and along a random direction, relative to the gradient's norm."""
        directions = [self.gradient * self.movable, self.subject.random_like(self.base) * self.movable]
        norm = float(directions[0].norm())
        found, errors = [], [self._past_clamp()]
        for direction in directions:
            length = float(direction.norm())
            if length == 0:
                continue
            direction = direction / length
            claimed = float((self.gradient * direction).sum())
            estimate = self._derivative(direction, claimed, norm)
            found.append(estimate)
            errors.append(relative_error(estimate, claimed, norm, TOLERANCE))
        return worst(errors), self._detail(found)

    def _elements(self) -> tuple[float, str]:
        """The largest element and a random one, relative to the largest."""
        chosen = self._choose_elements()
        largest = float((self.gradient * self.movable).abs().max())
        errors, places = [], []
        for index in chosen:
            direction = torch.zeros_like(self.base)
            direction.view(-1)[index] = 1.0
            claimed = float(self.gradient.reshape(-1)[index])
            estimate = self._derivative(direction, claimed, largest)
            errors.append(relative_error(estimate, claimed, largest, TOLERANCE))
            places.append(_place(index, tuple(self.base.shape)))
        where = max(range(len(errors)), key=lambda i: nan_last(errors[i]))
        return worst(errors), f"{len(chosen)} of {self.base.numel()}, worst at {places[where]}"

    def _choose_elements(self) -> list[int]:
        movable = self.movable.reshape(-1)
        largest = int((self.gradient.reshape(-1).abs() + 1e-300).mul(movable).argmax())
        keys = self.subject.random_like(movable.to(torch.float64)).masked_fill(~movable, -torch.inf)
        keys[largest] = torch.inf
        return keys.topk(min(ELEMENTS, int(movable.sum()))).indices.tolist()

    def _derivative(self, direction: Tensor, claimed: float, norm: float) -> Derivative:
        size = direction.abs()
        step = self.step / float(size.max())
        if bool(torch.isfinite(self.room).any()):  # no element reaches its clamp
            step = min(step, 0.9 * float((self.room / size)[size > 0].min()))
        return derivative(self._along(direction), step, claimed, near=TOLERANCE * norm / 10)

    def _along(self, direction: Tensor) -> Callable[[float], float]:
        def loss(distance: float) -> float:
            moved = self.parameter.data
            try:
                torch.add(self.base, direction, alpha=distance, out=moved)
                return self.loss()
            finally:
                moved.copy_(self.base)

        return loss

    def _past_clamp(self) -> float:
        """What is claimed where elements stay: at or past the clamp it must be zero."""
        stays = self.gradient * ((self.room <= 0) & ~self.movable)
        norm = float(self.gradient.norm())
        return float(stays.norm()) / norm if norm else 0.0

    def _detail(self, found: list[Derivative]) -> str:
        notes = []
        norm = float(self.gradient.norm())
        still = int((~self.movable).sum())
        if norm == 0:
            notes.append("the gradient is exactly zero")
        elif any(d.rounding > TOLERANCE * norm for d in found):
            resolved = max(d.rounding for d in found) / TOLERANCE
            notes.append(f"norm {norm:.0e}, judged against {resolved:.0e}, what float64 differences resolve")
        if still:
            notes.append(f"{still} of {self.base.numel()} elements at the clamp not moved")
        return "; ".join(notes)


def _clamps(model: nn.Module) -> dict[int, tuple[float, float]]:
    """The (low, high) of each A_log that is clamped, by the identity of the parameter."""
    found = {}
    for module in model.modules():
        clamp = getattr(module, "A_log_clamp", None)
        if clamp is not None:
            found[id(module.A_log)] = clamp
    return found


def _room(values: Tensor, clamp: tuple[float, float] | None) -> Tensor:
    """How far each element may move before its clamp acts; past it, before it ceases to; at it 0.

    Past the clamp that is so within the margin only: further out the loss is flat, and a step shows it.
    """
    if clamp is None:
        return torch.full_like(values, torch.inf)
    low, high = clamp
    distance = torch.minimum((values - low).abs(), (values - high).abs())
    past = (values <= low) | (values >= high)
    return torch.where(past & (distance <= KINK_MARGIN), 0.0, distance)


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt()) if values.numel() else 0.0


def _place(index: int, shape: tuple[int, ...]) -> str:
    place = []
    for size in reversed(shape):
        index, i = divmod(index, size)
        place.append(i)
    return str(place[::-1])
