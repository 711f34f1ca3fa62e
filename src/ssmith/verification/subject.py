"""The model under proof: borrowed, put into the dtype a check needs, and given back as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ssmith.models import HybridLM


class Inputs(NamedTuple):
    """Random token ids and targets, (B, T) each."""

    ids: Tensor
    targets: Tensor


class Subject:
    """The user's own model object, hooks and adapters and all; only the memory of its tensors is swapped."""

    def __init__(self, model: HybridLM, seed: int) -> None:
        self.model = model
        self.generator = torch.Generator().manual_seed(seed)
        self.parameters = dict(model.named_parameters())
        self._tensors = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
        self._original = [t.data for t in self._tensors]

    @property
    def device(self) -> torch.device:
        return self.model.embedding.weight.device

    def cast(self, dtype: torch.dtype, rounded_to: torch.dtype | None = None) -> None:
        """Puts every parameter and buffer to `dtype`, in new memory, from the original values.

        `rounded_to` is a dtype through which the values go first.
        """
        for tensor, original in zip(self._tensors, self._original, strict=True):
            rounded = original if rounded_to is None else original.to(rounded_to)
            tensor.data = rounded.to(dtype, copy=True)

    def give_back(self) -> None:
        """Puts every parameter and buffer back on its own memory, which nothing has written to."""
        for tensor, original in zip(self._tensors, self._original, strict=True):
            tensor.data = original

    def random_inputs(self, batch: int, time: int) -> Inputs:
        """Ids and targets drawn uniformly from the vocabulary."""
        both = torch.randint(
            self.model.config.vocab_size, (2, batch, time), generator=self.generator, dtype=torch.long
        ).to(self.device)
        return Inputs(both[0], both[1])

    def random_like(self, tensor: Tensor) -> Tensor:
        """Independent standard normal numbers of a tensor's shape, dtype and device."""
        return torch.randn(tensor.shape, generator=self.generator, dtype=torch.float64).to(tensor)

    def set_backend(self, backend: str) -> None:
        self.model.set_backend(backend)

    def gradients(self, ids: Tensor, targets: Tensor, **inputs: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss and every parameter's gradient, for any way of giving rows to the model."""
        with torch.enable_grad():
            loss = self.model(ids, targets=targets, logits=False, **inputs).loss
            found = torch.autograd.grad(loss, list(self.parameters.values()), allow_unused=True)
        named = zip(self.parameters.items(), found, strict=True)
        return loss.detach(), {n: torch.zeros_like(p) if g is None else g.detach() for (n, p), g in named}


@contextmanager
def borrowed(model: HybridLM, seed: int) -> Iterator[Subject]:
    """The model in float64 on the reference, in evaluation mode, every parameter asking for its gradient.

    On leaving, by an exception too, everything is as it was: values to the bit (they are never written),
    dtypes, requires_grad, grad, modes of training, backends, activation checkpointing, torch's random state.
    """
    subject = Subject(model, seed)
    parameters = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    training = [(m, m.training) for m in model.modules()]
    backends: list[tuple[Any, str]] = [(m, m.backend) for m in backend_modules(model)]
    checkpointing = model.activation_checkpointing
    devices = [subject.device] if subject.device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        try:
            model.eval()
            model.set_activation_checkpointing("none")
            subject.set_backend("reference")
            for p, _, _ in parameters:
                p.requires_grad_(p.is_floating_point())
            subject.cast(torch.float64)
            yield subject
        finally:
            subject.give_back()
            for p, requires_grad, grad in parameters:
                p.requires_grad_(requires_grad)
                p.grad = grad
            for module, mode in training:
                module.training = mode
            for module, backend in backends:
                module.backend = backend
            model.set_activation_checkpointing(checkpointing)


def backend_modules(model: nn.Module) -> list[Any]:
    """The modules that call an operator and so have a backend."""
    return [m for m in model.modules() if hasattr(m, "backend")]


def check_finite(model: nn.Module) -> None:
    """Raises ValueError that names the first tensor with a value that is not finite."""
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in tensors:
            wrong = ~torch.isfinite(tensor.detach())
            if bool(wrong.any()):
                place = tuple(int(i) for i in wrong.nonzero()[0])
                raise ValueError(
                    f"cannot verify: {kind} {name!r} holds {float(tensor.detach()[place])} at {list(place)} "
                    f"({int(wrong.sum())} of {tensor.numel()} values are not finite); load other weights"
                )
