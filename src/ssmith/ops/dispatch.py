"""Which backend serves a call, and why. The only place that knows devices.

A backend is named after the file that holds it: `reference` (PyTorch, any device, any dtype) or `cpu`
(Numba kernels). An operator lists its backends from best to worst; each says why it cannot serve a call,
or says nothing and serves it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import NamedTuple

import torch

from ssmith.config.schema import BACKENDS

# Why Numba kernels cannot run on this machine, or None; a constant, so that torch.compile can see through it.
NUMBA_MISSING = None if importlib.util.find_spec("numba") is not None else "numba is not installed"


class Choice(NamedTuple):
    """The backend that serves a call, and the reason in words."""

    backend: str
    why: str


def cpu_refusal(*tensors: torch.Tensor | None) -> str | None:
    """Why the Numba kernels cannot serve a call with these inputs, or None."""
    for tensor in tensors:
        if tensor is not None and tensor.device.type != "cpu":
            return f"the tensors are on {tensor.device}"
        if tensor is not None and tensor.dtype != torch.float32:
            return f"the dtype is {name_dtype(tensor.dtype)}, kernels exist for float32"
    return NUMBA_MISSING


def one_token_refusal(rows: int, *tensors: torch.Tensor | None) -> str | None:
    """Why `auto` leaves a call to PyTorch that decodes one token of each sequence, or None."""
    if rows == 1 and not needs_gradient(*tensors):
        return "one token without gradient is faster in plain PyTorch"
    return None


def needs_gradient(*tensors: torch.Tensor | None) -> bool:
    """Whether backward will be asked for."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def choose(op: str, backend: str, refusals: Mapping[str, str | None]) -> Choice:
    """Picks a backend for one call of `op`.

    `refusals` maps backend names, best first, to the reason why each cannot serve the call (None: it can).
    `auto` takes the first that can. A name that cannot serve raises ValueError with the reason.
    """
    if backend not in BACKENDS:
        raise ValueError(f"{op}: unknown backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend == "auto":
        return _first_that_serves(op, refusals)
    if backend not in refusals:
        raise ValueError(f"{op}: there is no {backend!r} backend; it has {', '.join(refusals)}")
    if refusals[backend] is not None:
        raise ValueError(f"{op}: backend {backend!r} cannot serve this call: {refusals[backend]}")
    return Choice(backend, "asked for by name")


def _first_that_serves(op: str, refusals: Mapping[str, str | None]) -> Choice:
    reasons = []
    for name, reason in refusals.items():
        if reason is None:
            return Choice(name, "; ".join(reasons) or "the fastest here")
        reasons.append(f"{name}: {reason}")
    raise ValueError(f"{op}: no backend can serve this call ({'; '.join(reasons)})")


def name_dtype(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")
