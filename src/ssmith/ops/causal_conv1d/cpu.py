"""causal_conv1d on the CPU: Numba kernels behind `torch.library.custom_op`, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssmith.ops.causal_conv1d import kernels
from ssmith.ops.causal_conv1d.kernels import (
    Conv,
    Gradients,
    backward_scratch,
    conv_backward,
    conv_forward,
    forward_scratch,
)
from ssmith.ops.simd.kernel import aligned_floats, host_lanes, prepare
from ssmith.ops.simd.memory import address, as_rows, borders_of, row_stride
from ssmith.ops.simd.sums import sum_first
from ssmith.ops.simd.threads import share

LANES = host_lanes(kernels.__file__)


def causal_conv1d_cpu(
    x_BTC: Tensor,
    weight_CK: Tensor,
    bias_C: Tensor | None,
    *,
    activation: str | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """See `ssmith.ops.causal_conv1d`. float32 on the CPU; for backward it keeps the inputs.

    x may be a slice of wider rows (one half of a projection); it is not copied then.
    """
    return _forward(x_BTC, weight_CK, bias_C, initial_state, cu_seqlens, activation == "silu")


@torch.library.custom_op("ssmith::causal_conv1d", mutates_args=(), device_types="cpu")
def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    x, weight = as_rows(x), weight.contiguous()
    bias, initial_state = _contiguous(bias), _contiguous(initial_state)
    borders = borders_of(cu_seqlens, x)
    y, final_state = _outputs(x, weight, cu_seqlens)
    conv = _conv(x, weight, bias, initial_state, silu)
    outputs = (y.data_ptr(), final_state.data_ptr())
    tasks = (len(borders) - 1) * _vectors(conv)
    prepare(conv_forward, LANES, conv, borders, *outputs, 0, 0, 0)

    def work(tickets: int) -> None:
        memory = aligned_floats(forward_scratch(conv.kernel, LANES.width))
        conv_forward(LANES, conv, borders, *outputs, memory.ctypes.data, tickets, tasks)

    share(work, tasks)
    return y, final_state


@_forward.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    return _outputs(x, weight, cu_seqlens)


@torch.library.custom_op("ssmith::causal_conv1d_backward", mutates_args=(), device_types="cpu")
def _backward(
    dy: Tensor | None,
    dfinal_state: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    results = _gradient_shapes(x, weight, cu_seqlens)
    dx, dweight, dbias, dinitial_state = results
    x, weight = as_rows(x), weight.contiguous()
    bias, initial_state, dfinal_state = (
        _contiguous(bias),
        _contiguous(initial_state),
        _contiguous(dfinal_state),
    )
    dy = x.new_zeros(x.shape) if dy is None else as_rows(dy)
    borders = borders_of(cu_seqlens, x)
    sequences = len(borders) - 1
    dweights, dbiases = x.new_empty(sequences, *weight.shape), x.new_empty(sequences, weight.shape[0])
    conv = _conv(x, weight, bias, initial_state, silu)
    gradients = Gradients(
        dy.data_ptr(), address(dfinal_state), dx.data_ptr(), dinitial_state.data_ptr(), dweights.data_ptr(),
        dbiases.data_ptr(), row_stride(dy),
    )  # fmt: skip
    tasks = sequences * _vectors(conv)
    prepare(conv_backward, LANES, conv, gradients, borders, 0, 0, 0)

    def work(tickets: int) -> None:
        memory = aligned_floats(backward_scratch(conv.kernel, LANES.width))
        conv_backward(LANES, conv, gradients, borders, memory.ctypes.data, tickets, tasks)

    share(work, tasks)
    sum_first(dweights, dweight)
    sum_first(dbiases, dbias)
    return results


@_backward.register_fake
def _(
    dy: Tensor | None,
    dfinal_state: Tensor | None,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _gradient_shapes(x, weight, cu_seqlens)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.silu = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, dy: Tensor | None, dfinal_state: Tensor | None) -> Any:
    results = _backward(dy, dfinal_state, *ctx.saved_tensors, ctx.silu)
    gradients = (g if needed else None for g, needed in zip(results, ctx.needs_input_grad, strict=False))
    return (*gradients, None, None)


_forward.register_autograd(_differentiate, setup_context=_setup_context)


def _outputs(x: Tensor, weight: Tensor, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
    channels, kernel = weight.shape
    return x.new_empty(x.shape), x.new_empty(_sequences(x, cu_seqlens), channels, kernel - 1)


def _gradient_shapes(
    x: Tensor, weight: Tensor, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Room for dx, dweight, dbias and dinitial_state."""
    channels, kernel = weight.shape
    initial = x.new_empty(_sequences(x, cu_seqlens), channels, kernel - 1)
    return x.new_empty(x.shape), x.new_empty(channels, kernel), x.new_empty(channels), initial


def _sequences(x: Tensor, cu_seqlens: Tensor | None) -> int:
    return x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1


def _conv(x: Tensor, weight: Tensor, bias: Tensor | None, initial_state: Tensor | None, silu: bool) -> Conv:
    channels, kernel = weight.shape
    return Conv(
        x.data_ptr(), weight.data_ptr(), address(bias), address(initial_state), row_stride(x), channels,
        kernel, int(silu),
    )  # fmt: skip


def _vectors(conv: Conv) -> int:
    return -(-conv.channels // LANES.width)


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()
