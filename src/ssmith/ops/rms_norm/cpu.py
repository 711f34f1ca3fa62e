"""rms_norm on the CPU: Numba kernels behind `torch.library.custom_op`, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssmith.ops.rms_norm import kernels
from ssmith.ops.rms_norm.kernels import ROWS, Norm, norm_backward, norm_forward
from ssmith.ops.simd.kernel import aligned_floats, host_lanes, prepare
from ssmith.ops.simd.memory import address, as_rows, row_stride
from ssmith.ops.simd.sums import sum_first
from ssmith.ops.simd.threads import share
from ssmith.ops.simd.vectors import FOLDED

LANES = host_lanes(kernels.__file__)


def rms_norm_cpu(x: Tensor, weight: Tensor | None, *, eps: float) -> Tensor:
    """See `ssmith.ops.rms_norm`. float32 on the CPU, no gate, no groups; it keeps the inputs and 1 / rms."""
    rows = x.reshape(1, -1, x.shape[-1])
    return _forward(rows, weight, eps)[0].reshape(x.shape)


@torch.library.custom_op("ssmith::rms_norm", mutates_args=(), device_types="cpu")
def _forward(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    x, weight = as_rows(x), None if weight is None else weight.contiguous()
    y, inverse = x.new_empty(x.shape), x.new_empty(x.shape[:2])
    norm = _norm(x, weight, eps)
    outputs = (y.data_ptr(), inverse.data_ptr())
    tasks = _tasks(norm)
    prepare(norm_forward, LANES, norm, *outputs, 0, 0, 0)

    def work(tickets: int) -> None:
        memory = aligned_floats(FOLDED)
        norm_forward(LANES, norm, *outputs, memory.ctypes.data, tickets, tasks)

    share(work, tasks)
    return y, inverse


@_forward.register_fake
def _(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[:2])


@torch.library.custom_op("ssmith::rms_norm_backward", mutates_args=(), device_types="cpu")
def _backward(
    dy: Tensor, x: Tensor, weight: Tensor | None, inverse: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    x, dy, weight = as_rows(x), as_rows(dy), None if weight is None else weight.contiguous()
    norm = _norm(x, weight, eps)
    dx, dweight = x.new_empty(x.shape), x.new_empty(norm.channels)
    tasks = _tasks(norm)
    dweights = x.new_empty(tasks, norm.channels)
    incoming = (dy.data_ptr(), row_stride(dy), inverse.data_ptr())
    outputs = (dx.data_ptr(), dweights.data_ptr())
    prepare(norm_backward, LANES, norm, *incoming, *outputs, 0, 0, 0)

    def work(tickets: int) -> None:
        memory = aligned_floats(FOLDED + norm.channels + LANES.width)
        norm_backward(LANES, norm, *incoming, *outputs, memory.ctypes.data, tickets, tasks)

    share(work, tasks)
    sum_first(dweights, dweight)
    return dx, dweight


@_backward.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor | None, inverse: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape[-1])


def _setup_context(
    ctx: Any, inputs: tuple[Tensor, Tensor | None, float], output: tuple[Tensor, Tensor]
) -> None:
    x, weight, ctx.eps = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, output[1])


def _differentiate(ctx: Any, dy: Tensor | None, _: Tensor | None) -> Any:
    if dy is None:
        return None, None, None
    x, weight, inverse = ctx.saved_tensors
    dx, dweight = _backward(dy, x, weight, inverse, ctx.eps)
    wants_x, wants_weight, _ = ctx.needs_input_grad
    return dx if wants_x else None, dweight if wants_weight else None, None


_forward.register_autograd(_differentiate, setup_context=_setup_context)


def _norm(x: Tensor, weight: Tensor | None, eps: float) -> Norm:
    batch, time, channels = x.shape
    return Norm(x.data_ptr(), address(weight), row_stride(x), batch * time, channels, eps)


def _tasks(norm: Norm) -> int:
    return -(-norm.rows // ROWS)
