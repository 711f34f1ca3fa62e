"""The forward kernel of selective_scan: time inside, state index outside, a vector of channels at once.

A task is one sequence and one span of channels. Inside, `STEPS` time steps of one vector of channels are
staged (dt, dt u, D u) in tiles that stay in the first-level cache, and each state index n then walks over
them with its state in registers. The states at chunk borders are what backward needs besides the inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssmith.ops.simd.kernel import inner, kernel
from ssmith.ops.simd.tiles import clear, load_columns, store_columns
from ssmith.ops.simd.vectors import (
    LOG2_E,
    broadcast,
    exp2,
    get,
    load,
    load_first,
    next_task,
    phi1,
    prefetch,
    prefetch_for_store,
    sigmoid,
    softplus,
    store,
    store_first,
    width,
)

STEPS = 16  # time steps of a chunk
LN_2 = np.float32(0.6931471805599453)
# Tiles a power of two apart would share their cache sets and look like each other to the store buffer.
TILE_PADDING = 80


class Scan(NamedTuple):
    """The inputs of a scan and its sizes. Tensors are addresses, 0 where absent; strides count floats."""

    u: int
    delta: int
    A: int
    B: int
    C: int
    D: int
    z: int
    delta_bias: int
    checkpoints: int  # (chunks, N, I): the state before each chunk
    u_stride: int
    delta_stride: int
    z_stride: int
    B_stride: int
    C_stride: int
    inner: int
    state_size: int
    spans: int
    span: int  # channels of a task
    softplus: int
    zoh: int


class Tiles(NamedTuple):
    """Scratch memory of a thread. (steps, lanes) each, the last ones (state size, lanes)."""

    dt: int
    dt_u: int
    y: int
    gate: int  # silu(z)
    A: int  # times log2(e): exp(dt A) is exp2(dt A log2(e))
    state: int


def forward_scratch(state_size: int, lanes: int) -> int:
    """Floats of scratch memory that `scan_forward` needs."""
    return 4 * (STEPS * lanes + TILE_PADDING) + 2 * state_size * lanes


@inner
def lay_out(lanes, scratch, state_size):
    """Cuts the scratch memory into tiles."""
    tile = 4 * (STEPS * width(lanes) + TILE_PADDING)
    states = scratch + 4 * tile
    state = states + 4 * state_size * width(lanes)
    return Tiles(scratch, scratch + tile, scratch + 2 * tile, scratch + 3 * tile, states, state)


@kernel
def scan_forward(lanes, p, borders, initial_state, y, final_state, scratch, tickets, tasks):
    """Runs tasks as long as there are any. `borders` are the rows where sequences begin, and the end."""
    tiles = lay_out(lanes, scratch, p.state_size)
    task = next_task(tickets)
    while task < tasks:
        sequence, span = task // p.spans, task % p.spans
        begin, end = borders[sequence], borders[sequence + 1]
        for channel in range(span * p.span, min((span + 1) * p.span, p.inner), width(lanes)):
            count = min(width(lanes), p.inner - channel)
            row = 4 * (sequence * p.inner + channel) * p.state_size
            load_columns(lanes, p.A + 4 * channel * p.state_size, p.state_size, count, LOG2_E, tiles.A)
            if initial_state != 0:
                load_columns(lanes, initial_state + row, p.state_size, count, 1.0, tiles.state)
            else:
                clear(lanes, tiles.state, p.state_size)
            chunk = begin // STEPS + sequence
            for start in range(begin, end, STEPS):
                steps = min(STEPS, end - start)
                if p.checkpoints != 0:
                    keep_state(
                        lanes, tiles.state, p.checkpoints, chunk, channel, count, p.state_size, p.inner
                    )
                stage(lanes, p, tiles, start, steps, channel, count)
                advance(lanes, p, scratch, y, start, steps, end, channel)
                finish(lanes, p, tiles, y, start, steps, channel, count)
                chunk += 1
            store_columns(lanes, tiles.state, p.state_size, count, final_state + row)
        task = next_task(tickets)


@inner
def keep_state(lanes, state, checkpoints, chunk, channel, count, state_size, inner):
    """Writes the state before a chunk to checkpoints[chunk, :, channel:]."""
    for n in range(state_size):
        value = load(lanes, state, n * width(lanes))
        store_first(checkpoints, (chunk * state_size + n) * inner + channel, value, count)


@inner
def stage(lanes, p, tiles, start, steps, channel, count):
    """dt, dt u, D u and the gate of a chunk, in one loop: softplus and silu hide each other's latency."""
    zero = broadcast(lanes, np.float32(0.0))
    bias = load_first(lanes, p.delta_bias, channel, count) if p.delta_bias != 0 else zero
    D = load_first(lanes, p.D, channel, count) if p.D != 0 else zero
    for t in range(steps):
        at = t * width(lanes)
        u = load_first(lanes, p.u, (start + t) * p.u_stride + channel, count)
        dt = load_first(lanes, p.delta, (start + t) * p.delta_stride + channel, count) + bias
        if p.softplus != 0:
            dt = softplus(dt)[0]
        store(tiles.dt, at, dt)
        store(tiles.dt_u, at, dt * u)
        store(tiles.y, at, D * u)
        if p.z != 0:
            z = load_first(lanes, p.z, (start + t) * p.z_stride + channel, count)
            store(tiles.gate, at, z * sigmoid(z))


@inner
def advance(lanes, p, scratch, y, start, steps, end, channel):
    """Walks each state index over a chunk, adding C h to y."""
    for n in range(p.state_size):
        for row in range(start + n, start + steps, p.state_size):
            prefetch_for_store(lanes, y, row * p.inner + channel)
        fetch_ahead(lanes, p, start + steps + n, min(start + steps + STEPS, end), channel)
        B, C = p.B + 4 * (start * p.B_stride + n), p.C + 4 * (start * p.C_stride + n)
        if p.zoh != 0:
            advance_zoh(lanes, scratch, p.state_size, n, steps, B, p.B_stride, C, p.C_stride)
        else:
            advance_euler(lanes, scratch, p.state_size, n, steps, B, p.B_stride, C, p.C_stride)


@inner
def fetch_ahead(lanes, p, first, last, channel):
    """Asks for every N-th row of the next chunk, so that all of it is near when its turn comes."""
    for row in range(first, last, p.state_size):
        prefetch(lanes, p.u, row * p.u_stride + channel)
        prefetch(lanes, p.delta, row * p.delta_stride + channel)
        if p.z != 0:
            prefetch(lanes, p.z, row * p.z_stride + channel)


@inner
def advance_euler(lanes, scratch, state_size, n, steps, B, B_stride, C, C_stride):
    """h = exp(dt A) h + dt u B; y += C h."""
    tiles = lay_out(lanes, scratch, state_size)
    h = load(lanes, tiles.state, n * width(lanes))
    A = load(lanes, tiles.A, n * width(lanes))
    for t in range(steps):
        at = t * width(lanes)
        decay = exp2(load(lanes, tiles.dt, at) * A)
        h = decay * h + load(lanes, tiles.dt_u, at) * broadcast(lanes, get(B, t * B_stride))
        store(tiles.y, at, load(lanes, tiles.y, at) + h * broadcast(lanes, get(C, t * C_stride)))
    store(tiles.state, n * width(lanes), h)


@inner
def advance_zoh(lanes, scratch, state_size, n, steps, B, B_stride, C, C_stride):
    """h = exp(dt A) h + phi1(dt A) dt u B; y += C h."""
    tiles = lay_out(lanes, scratch, state_size)
    h = load(lanes, tiles.state, n * width(lanes))
    A = load(lanes, tiles.A, n * width(lanes))
    ln_2 = broadcast(lanes, LN_2)
    for t in range(steps):
        at = t * width(lanes)
        exponent = load(lanes, tiles.dt, at) * A
        decay = exp2(exponent)
        weight = phi1(exponent * ln_2, decay)[0]
        h = decay * h + load(lanes, tiles.dt_u, at) * weight * broadcast(lanes, get(B, t * B_stride))
        store(tiles.y, at, load(lanes, tiles.y, at) + h * broadcast(lanes, get(C, t * C_stride)))
    store(tiles.state, n * width(lanes), h)


@inner
def finish(lanes, p, tiles, y, start, steps, channel, count):
    """Gates a chunk's y and writes it."""
    for t in range(steps):
        value = load(lanes, tiles.y, t * width(lanes))
        if p.z != 0:
            value = value * load(lanes, tiles.gate, t * width(lanes))
        store_first(y, (start + t) * p.inner + channel, value, count)
