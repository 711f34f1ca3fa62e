"""selective_scan on the CPU: Numba kernels behind `torch.library.custom_op`, forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssmith.ops.selective_scan import backward_kernel, forward_kernel
from ssmith.ops.selective_scan.backward_kernel import Gradients, backward_scratch, scan_backward
from ssmith.ops.selective_scan.forward_kernel import STEPS, Scan, forward_scratch, scan_forward
from ssmith.ops.simd.kernel import aligned_floats, host_lanes, prepare
from ssmith.ops.simd.memory import address, as_rows, borders_of, row_stride
from ssmith.ops.simd.sums import sum_first
from ssmith.ops.simd.threads import share

# Fixed, so that neither the number of threads nor that of sequences decides how a sum is split.
SPAN = 128
LANES = host_lanes(forward_kernel.__file__, backward_kernel.__file__)


def selective_scan_cpu(
    u_BTI: Tensor,
    delta_BTI: Tensor,
    A_IN: Tensor,
    B_BTN: Tensor,
    C_BTN: Tensor,
    D_I: Tensor | None,
    z_BTI: Tensor | None,
    delta_bias_I: Tensor | None,
    *,
    delta_softplus: bool,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    discretization: str,
) -> tuple[Tensor, Tensor]:
    """See `ssmith.ops.selective_scan`. float32; for backward it keeps the inputs and a state per chunk.

    u, delta, z, B and C may be slices of wider rows (the halves of a projection); they are not copied then.
    """
    tensors = (u_BTI, delta_BTI, A_IN, B_BTN, C_BTN, D_I, z_BTI, delta_bias_I, initial_state)
    for_backward = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    y, final_state, _ = _forward(*tensors, cu_seqlens, delta_softplus, discretization == "zoh", for_backward)
    return y, final_state


@torch.library.custom_op("ssmith::selective_scan", mutates_args=(), device_types="cpu")
def _forward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    delta_softplus: bool,
    zoh: bool,
    for_backward: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    inputs = _Inputs(u, delta, A, B, C, D, z, delta_bias, cu_seqlens)
    y, final_state, checkpoints = _outputs(u, A, cu_seqlens, for_backward)
    initial_state = None if initial_state is None else initial_state.contiguous()
    scan = inputs.scan(checkpoints if for_backward else None, delta_softplus, zoh)
    state, outputs = address(initial_state), (address(y), address(final_state))
    tasks = inputs.sequences * scan.spans
    prepare(scan_forward, LANES, scan, inputs.borders, state, *outputs, 0, 0, 0)

    def work(tickets: int) -> None:
        scratch = aligned_floats(forward_scratch(scan.state_size, LANES.width))
        scan_forward(LANES, scan, inputs.borders, state, *outputs, scratch.ctypes.data, tickets, tasks)

    share(work, tasks)
    return y, final_state, checkpoints


@_forward.register_fake
def _(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    delta_softplus: bool,
    zoh: bool,
    for_backward: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(u, A, cu_seqlens, for_backward)


def _outputs(
    u: Tensor, A: Tensor, cu_seqlens: Tensor | None, for_backward: bool
) -> tuple[Tensor, Tensor, Tensor]:
    batch, time, inner = u.shape
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    # A sequence's first chunk stands at (its first row) // STEPS + (its number): room enough, and no sum of
    # rounded-up lengths, which a tracer that does not know the documents could not tell.
    chunks = batch * time // STEPS + sequences if for_backward else 0
    return (
        u.new_empty(batch, time, inner),
        u.new_empty(sequences, inner, A.shape[1]),
        u.new_empty(chunks, A.shape[1], inner),
    )


@torch.library.custom_op("ssmith::selective_scan_backward", mutates_args=(), device_types="cpu")
def _backward(
    dy: Tensor | None,
    dfinal_state: Tensor | None,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    cu_seqlens: Tensor | None,
    checkpoints: Tensor,
    delta_softplus: bool,
    zoh: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    inputs = _Inputs(u, delta, A, B, C, D, z, delta_bias, cu_seqlens)
    scan = inputs.scan(checkpoints, delta_softplus, zoh)
    dy = u.new_zeros(u.shape) if dy is None else dy.contiguous()
    dfinal_state = None if dfinal_state is None else dfinal_state.contiguous()
    results = _gradient_shapes(u, A, z, cu_seqlens)
    du, ddelta, dA, dB, dC, dD, dz, dbias, dinitial = results
    over_sequences = [u.new_empty(inputs.sequences, *x.shape) for x in (dA, dD, dbias)]
    over_spans = [u.new_empty(scan.spans, *x.shape) for x in (dB, dC)]
    gradients = Gradients(
        dy.data_ptr(), address(dfinal_state), du.data_ptr(), ddelta.data_ptr(), dz.data_ptr(),
        dinitial.data_ptr(), over_sequences[0].data_ptr(), over_spans[0].data_ptr(), over_spans[1].data_ptr(),
        over_sequences[1].data_ptr(), over_sequences[2].data_ptr(), inputs.rows,
    )  # fmt: skip
    tasks = inputs.sequences * scan.spans
    prepare(scan_backward, LANES, scan, gradients, inputs.borders, 0, 0, 0)

    def work(tickets: int) -> None:
        scratch = aligned_floats(backward_scratch(scan.state_size, LANES.width))
        scan_backward(LANES, scan, gradients, inputs.borders, scratch.ctypes.data, tickets, tasks)

    share(work, tasks)
    for parts, total in zip([*over_sequences, *over_spans], [dA, dD, dbias, dB, dC], strict=True):
        sum_first(parts, total)
    return results


@_backward.register_fake
def _(
    dy: Tensor | None,
    dfinal_state: Tensor | None,
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    cu_seqlens: Tensor | None,
    checkpoints: Tensor,
    delta_softplus: bool,
    zoh: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _gradient_shapes(u, A, z, cu_seqlens)


def _gradient_shapes(
    u: Tensor, A: Tensor, z: Tensor | None, cu_seqlens: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Room for du, ddelta, dA, dB, dC, dD, dz, d delta_bias and d initial_state."""
    (batch, time, inner), state_size = u.shape, A.shape[1]
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return (
        u.new_empty(batch, time, inner),
        u.new_empty(batch, time, inner),
        u.new_empty(inner, state_size),
        u.new_empty(batch, time, state_size),
        u.new_empty(batch, time, state_size),
        u.new_empty(inner),
        u.new_empty(0) if z is None else u.new_empty(batch, time, inner),
        u.new_empty(inner),
        u.new_empty(sequences, inner, state_size),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    *tensors, cu_seqlens, ctx.delta_softplus, ctx.zoh, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors[:8], cu_seqlens, output[2])


def _differentiate(ctx: Any, dy: Tensor | None, dfinal_state: Tensor | None, _: Tensor | None) -> Any:
    saved = ctx.saved_tensors
    results = _backward(dy, dfinal_state, *saved, ctx.delta_softplus, ctx.zoh)
    gradients = (g if needed else None for g, needed in zip(results, ctx.needs_input_grad, strict=False))
    return (*gradients, None, None, None, None)


_forward.register_autograd(_differentiate, setup_context=_setup_context)


class _Inputs:
    """The inputs as kernels read them: rows of B T time steps, copied only where that cannot be helped."""

    def __init__(
        self,
        u: Tensor,
        delta: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        D: Tensor | None,
        z: Tensor | None,
        delta_bias: Tensor | None,
        cu_seqlens: Tensor | None,
    ) -> None:
        self.u, self.delta, self.B, self.C = (as_rows(x) for x in (u, delta, B, C))
        self.z = None if z is None else as_rows(z)
        self.A = A.contiguous()
        self.D = None if D is None else D.contiguous()
        self.delta_bias = None if delta_bias is None else delta_bias.contiguous()
        self.rows = u.shape[0] * u.shape[1]
        self.borders = borders_of(cu_seqlens, u)
        self.sequences = len(self.borders) - 1

    def scan(self, checkpoints: Tensor | None, delta_softplus: bool, zoh: bool) -> Scan:
        inner, state_size = self.A.shape
        return Scan(
            u=self.u.data_ptr(),
            delta=self.delta.data_ptr(),
            A=self.A.data_ptr(),
            B=self.B.data_ptr(),
            C=self.C.data_ptr(),
            D=address(self.D),
            z=address(self.z),
            delta_bias=address(self.delta_bias),
            checkpoints=address(checkpoints),
            u_stride=row_stride(self.u),
            delta_stride=row_stride(self.delta),
            z_stride=0 if self.z is None else row_stride(self.z),
            B_stride=row_stride(self.B),
            C_stride=row_stride(self.C),
            inner=inner,
            state_size=state_size,
            spans=-(-inner // SPAN),
            span=SPAN,
            softplus=int(delta_softplus),
            zoh=int(zoh),
        )
