"""The backward kernel of selective_scan: chunks from last to first, each recomputed from its first state.

Tasks are those of the forward kernel. What several tasks add to (dA, dD, d delta_bias over sequences, dB and
dC over spans of channels) goes to buffers of their own, which `sum_first` adds up in a fixed order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssmith.ops.selective_scan.forward_kernel import LN_2, STEPS, TILE_PADDING
from ssmith.ops.simd.kernel import inner, kernel
from ssmith.ops.simd.tiles import clear, load_columns, store_columns
from ssmith.ops.simd.vectors import (
    FOLDED,
    LOG2_E,
    broadcast,
    exp2,
    fold,
    get,
    load,
    load_first,
    next_task,
    phi1,
    prefetch,
    prefetch_for_store,
    put,
    row_sums,
    sigmoid,
    softplus,
    store,
    store_first,
    width,
)

_STEP_TILES = 15


class Gradients(NamedTuple):
    """Addresses of the gradients that come in (the first two; `dstate` 0 where absent) and go out."""

    dy: int
    dstate: int
    du: int
    ddelta: int
    dz: int
    dinitial_state: int
    dA: int  # (sequences, I, N)
    dB: int  # (spans, rows, N)
    dC: int
    dD: int  # (sequences, I)
    ddelta_bias: int
    rows: int


class Tiles(NamedTuple):
    """Scratch memory of a thread: (steps, lanes) each, then (steps, 16), then (state size, lanes)."""

    dt: int
    dt_u: int
    u: int
    dy: int
    y: int
    decay: int
    past: int  # the state before each step
    weight: int  # phi1(dt A), zoh only
    slope: int  # phi1'(dt A) B dt u
    slope_of_dt: int  # d dt / d delta
    gate_slope: int  # dy d silu(z) / dz
    du_over_dt: int  # sum over n of B dh (times phi1)
    ddt: int  # sum over n of A d(dt A), times log2(e)
    products_B: int
    products_C: int
    A: int
    dstate: int
    dA: int
    dB: int  # (state size, steps)
    dC: int


def backward_scratch(state_size: int, lanes: int) -> int:
    """Floats of scratch memory that `scan_backward` needs."""
    return _STEP_TILES * (STEPS * lanes + TILE_PADDING) + state_size * (3 * lanes + 2 * STEPS)


@inner
def lay_out(lanes, scratch, state_size):
    """Cuts the scratch memory into tiles."""
    s, size = scratch, 4 * (STEPS * width(lanes) + TILE_PADDING)
    states, row = s + 15 * size, 4 * state_size * width(lanes)
    sums = states + 3 * row
    return Tiles(
        s, s + size, s + 2 * size, s + 3 * size, s + 4 * size, s + 5 * size, s + 6 * size, s + 7 * size,
        s + 8 * size, s + 9 * size, s + 10 * size, s + 11 * size, s + 12 * size, s + 13 * size, s + 14 * size,
        states, states + row, states + 2 * row, sums, sums + 4 * state_size * STEPS,
    )  # fmt: skip


@kernel
def scan_backward(lanes, p, g, borders, scratch, tickets, tasks):
    """Runs tasks as long as there are any. `borders` are the rows where sequences begin, and the end."""
    tiles = lay_out(lanes, scratch, p.state_size)
    task = next_task(tickets)
    while task < tasks:
        sequence, span = task // p.spans, task % p.spans
        begin, end = borders[sequence], borders[sequence + 1]
        first_channel = span * p.span
        for channel in range(first_channel, min(first_channel + p.span, p.inner), width(lanes)):
            count = min(width(lanes), p.inner - channel)
            row = 4 * (sequence * p.inner + channel) * p.state_size
            load_columns(lanes, p.A + 4 * channel * p.state_size, p.state_size, count, LOG2_E, tiles.A)
            if g.dstate != 0:
                load_columns(lanes, g.dstate + row, p.state_size, count, 1.0, tiles.dstate)
            else:
                clear(lanes, tiles.dstate, p.state_size)
            clear(lanes, tiles.dA, p.state_size)
            vectors = 4 * (sequence * p.inner + channel)
            zero_first(lanes, g.dD + vectors, count)
            zero_first(lanes, g.ddelta_bias + vectors, count)
            chunks = (end - begin + STEPS - 1) // STEPS
            for chunk in range(chunks - 1, -1, -1):
                start = begin + chunk * STEPS
                steps = min(STEPS, end - start)
                checkpoint = (begin // STEPS + sequence + chunk) * p.state_size * p.inner + channel
                stage(lanes, p, g, tiles, start, steps, channel, count)
                for n in range(p.state_size):
                    fetch_ahead(lanes, p, g, start, steps, begin, n, channel)
                    state = p.checkpoints + 4 * (checkpoint + n * p.inner)
                    if chunk > 0:
                        prefetch(lanes, state, -p.state_size * p.inner)
                    walk_back(lanes, p, scratch, n, start, steps, state, count)
                place = 4 * (span * g.rows + start) * p.state_size
                add_products(tiles.dB, g.dB + place, steps, p.state_size, channel == first_channel)
                add_products(tiles.dC, g.dC + place, steps, p.state_size, channel == first_channel)
                finish(lanes, p, g, tiles, start, steps, channel, count, vectors)
            store_columns(lanes, tiles.dA, p.state_size, count, g.dA + row)
            store_columns(lanes, tiles.dstate, p.state_size, count, g.dinitial_state + row)
        task = next_task(tickets)


@inner
def zero_first(lanes, address, count):
    """Zeros in the first `count` places."""
    store_first(address, 0, broadcast(lanes, np.float32(0.0)), count)


@inner
def stage(lanes, p, g, tiles, start, steps, channel, count):
    """What does not depend on n: dt and its slope, dt u, the gradient of y before the gate."""
    zero, one = broadcast(lanes, np.float32(0.0)), broadcast(lanes, np.float32(1.0))
    bias = load_first(lanes, p.delta_bias, channel, count) if p.delta_bias != 0 else zero
    D = load_first(lanes, p.D, channel, count) if p.D != 0 else zero
    for t in range(steps):
        at = t * width(lanes)
        u = load_first(lanes, p.u, (start + t) * p.u_stride + channel, count)
        dt = load_first(lanes, p.delta, (start + t) * p.delta_stride + channel, count) + bias
        slope = one
        if p.softplus != 0:
            dt, slope = softplus(dt)
        dy = load_first(lanes, g.dy, (start + t) * p.inner + channel, count)
        if p.z != 0:
            z = load_first(lanes, p.z, (start + t) * p.z_stride + channel, count)
            s = sigmoid(z)
            store(tiles.gate_slope, at, dy * (s * (one + z * (one - s))))
            dy = dy * (z * s)
        store(tiles.dt, at, dt)
        store(tiles.dt_u, at, dt * u)
        store(tiles.u, at, u)
        store(tiles.dy, at, dy)
        store(tiles.y, at, D * u)
        store(tiles.slope_of_dt, at, slope)
        store(tiles.du_over_dt, at, zero)
        store(tiles.ddt, at, zero)


@inner
def fetch_ahead(lanes, p, g, start, steps, begin, n, channel):
    """Asks for every N-th row of the chunk before, so that all of it is near when its turn comes."""
    for row in range(max(start - STEPS, begin) + n, start, p.state_size):
        prefetch(lanes, p.u, row * p.u_stride + channel)
        prefetch(lanes, p.delta, row * p.delta_stride + channel)
        prefetch(lanes, g.dy, row * p.inner + channel)
        if p.z != 0:
            prefetch(lanes, p.z, row * p.z_stride + channel)
    for row in range(start + n, start + steps, p.state_size):
        prefetch_for_store(lanes, g.du, row * p.inner + channel)
        prefetch_for_store(lanes, g.ddelta, row * p.inner + channel)
        if p.z != 0:
            prefetch_for_store(lanes, g.dz, row * p.inner + channel)


@inner
def walk_back(lanes, p, scratch, n, start, steps, state, count):
    """One state index over one chunk: recompute its states, then go back through them."""
    B, C = p.B + 4 * (start * p.B_stride + n), p.C + 4 * (start * p.C_stride + n)
    if p.zoh != 0:
        recompute_zoh(lanes, scratch, p.state_size, n, steps, state, count, B, p.B_stride, C, p.C_stride)
        reverse_zoh(lanes, scratch, p.state_size, n, steps, B, p.B_stride, C, p.C_stride)
    else:
        recompute_euler(lanes, scratch, p.state_size, n, steps, state, count, B, p.B_stride, C, p.C_stride)
        reverse_euler(lanes, scratch, p.state_size, n, steps, B, p.B_stride, C, p.C_stride)
    tiles = lay_out(lanes, scratch, p.state_size)
    for t in range(0, steps, FOLDED):
        store(tiles.dB, n * STEPS + t, row_sums(tiles.products_B + 4 * FOLDED * t))
        store(tiles.dC, n * STEPS + t, row_sums(tiles.products_C + 4 * FOLDED * t))


@inner
def recompute_euler(lanes, scratch, state_size, n, steps, state, count, B, B_stride, C, C_stride):
    """The forward recurrence again, keeping states and decays; h dy is what dC sums over channels."""
    tiles = lay_out(lanes, scratch, state_size)
    h = load_first(lanes, state, 0, count)
    A = load(lanes, tiles.A, n * width(lanes))
    for t in range(steps):
        at = t * width(lanes)
        decay = exp2(load(lanes, tiles.dt, at) * A)
        store(tiles.decay, at, decay)
        store(tiles.past, at, h)
        h = decay * h + load(lanes, tiles.dt_u, at) * broadcast(lanes, get(B, t * B_stride))
        store(tiles.products_C, t * FOLDED, fold(h * load(lanes, tiles.dy, at)))
        store(tiles.y, at, load(lanes, tiles.y, at) + h * broadcast(lanes, get(C, t * C_stride)))


@inner
def reverse_euler(lanes, scratch, state_size, n, steps, B, B_stride, C, C_stride):
    """dh goes back through a chunk, leaving its share of every gradient on the way."""
    tiles = lay_out(lanes, scratch, state_size)
    dh = load(lanes, tiles.dstate, n * width(lanes))
    A = load(lanes, tiles.A, n * width(lanes))
    dA = broadcast(lanes, np.float32(0.0))
    for t in range(steps - 1, -1, -1):
        at = t * width(lanes)
        dh = dh + load(lanes, tiles.dy, at) * broadcast(lanes, get(C, t * C_stride))
        store(tiles.products_B, t * FOLDED, fold(dh * load(lanes, tiles.dt_u, at)))
        du_over_dt = load(lanes, tiles.du_over_dt, at)
        store(tiles.du_over_dt, at, du_over_dt + dh * broadcast(lanes, get(B, t * B_stride)))
        dh = dh * load(lanes, tiles.decay, at)
        d_exponent = dh * load(lanes, tiles.past, at)  # gradient of dt A
        dA = dA + d_exponent * load(lanes, tiles.dt, at)
        store(tiles.ddt, at, load(lanes, tiles.ddt, at) + d_exponent * A)
    store(tiles.dstate, n * width(lanes), dh)
    store(tiles.dA, n * width(lanes), load(lanes, tiles.dA, n * width(lanes)) + dA)


@inner
def recompute_zoh(lanes, scratch, state_size, n, steps, state, count, B, B_stride, C, C_stride):
    """As `recompute_euler`, with the weight phi1(dt A) of the input and its slope kept too."""
    tiles = lay_out(lanes, scratch, state_size)
    h = load_first(lanes, state, 0, count)
    A = load(lanes, tiles.A, n * width(lanes))
    ln_2 = broadcast(lanes, LN_2)
    for t in range(steps):
        at = t * width(lanes)
        exponent = load(lanes, tiles.dt, at) * A
        decay = exp2(exponent)
        weight, slope = phi1(exponent * ln_2, decay)
        entry = load(lanes, tiles.dt_u, at) * broadcast(lanes, get(B, t * B_stride))
        store(tiles.decay, at, decay)
        store(tiles.past, at, h)
        store(tiles.weight, at, weight)
        store(tiles.slope, at, slope * entry)
        h = decay * h + weight * entry
        store(tiles.products_C, t * FOLDED, fold(h * load(lanes, tiles.dy, at)))
        store(tiles.y, at, load(lanes, tiles.y, at) + h * broadcast(lanes, get(C, t * C_stride)))


@inner
def reverse_zoh(lanes, scratch, state_size, n, steps, B, B_stride, C, C_stride):
    """As `reverse_euler`; the weight of the input depends on dt A as well."""
    tiles = lay_out(lanes, scratch, state_size)
    dh = load(lanes, tiles.dstate, n * width(lanes))
    A = load(lanes, tiles.A, n * width(lanes))
    dA = broadcast(lanes, np.float32(0.0))
    for t in range(steps - 1, -1, -1):
        at = t * width(lanes)
        dh = dh + load(lanes, tiles.dy, at) * broadcast(lanes, get(C, t * C_stride))
        weighted = dh * load(lanes, tiles.weight, at)
        store(tiles.products_B, t * FOLDED, fold(weighted * load(lanes, tiles.dt_u, at)))
        du_over_dt = load(lanes, tiles.du_over_dt, at)
        store(tiles.du_over_dt, at, du_over_dt + weighted * broadcast(lanes, get(B, t * B_stride)))
        d_exponent = dh * load(lanes, tiles.slope, at)
        dh = dh * load(lanes, tiles.decay, at)
        d_exponent = d_exponent + dh * load(lanes, tiles.past, at)
        dA = dA + d_exponent * load(lanes, tiles.dt, at)
        store(tiles.ddt, at, load(lanes, tiles.ddt, at) + d_exponent * A)
    store(tiles.dstate, n * width(lanes), dh)
    store(tiles.dA, n * width(lanes), load(lanes, tiles.dA, n * width(lanes)) + dA)


@inner
def add_products(sums, gradient, steps, state_size, is_first):
    """gradient[t, n] += sums[n, t], or = for the first vector of a span."""
    for t in range(steps):
        for n in range(state_size):
            value = get(sums, n * STEPS + t)
            if not is_first:
                value += get(gradient, t * state_size + n)
            put(gradient, t * state_size + n, value)


@inner
def finish(lanes, p, g, tiles, start, steps, channel, count, vectors):
    """The gradients of u, delta, z, D and delta_bias of a chunk."""
    zero, ln_2 = broadcast(lanes, np.float32(0.0)), broadcast(lanes, LN_2)
    D = load_first(lanes, p.D, channel, count) if p.D != 0 else zero
    dD, dbias = zero, zero
    for t in range(steps):
        at, place = t * width(lanes), (start + t) * p.inner + channel
        u, dy, du_over_dt = (
            load(lanes, tiles.u, at),
            load(lanes, tiles.dy, at),
            load(lanes, tiles.du_over_dt, at),
        )
        ddelta = (du_over_dt * u + load(lanes, tiles.ddt, at) * ln_2) * load(lanes, tiles.slope_of_dt, at)
        dD = dD + dy * u
        dbias = dbias + ddelta
        store_first(g.du, place, du_over_dt * load(lanes, tiles.dt, at) + dy * D, count)
        store_first(g.ddelta, place, ddelta, count)
        if p.z != 0:
            store_first(g.dz, place, load(lanes, tiles.y, at) * load(lanes, tiles.gate_slope, at), count)
    store_first(g.dD + vectors, 0, load_first(lanes, g.dD + vectors, 0, count) + dD, count)
    store_first(
        g.ddelta_bias + vectors, 0, load_first(lanes, g.ddelta_bias + vectors, 0, count) + dbias, count
    )
