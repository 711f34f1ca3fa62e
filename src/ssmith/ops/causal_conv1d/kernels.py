"""The kernels of causal_conv1d. A task is one sequence and one vector of channels; time is walked in chunks.

A chunk's inputs are staged behind the K - 1 before them, so that every output is the same sum over taps,
wherever the sequence begins. Backward goes from the last chunk to the first, with the K - 1 gradients behind
each chunk kept from the one after it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssmith.ops.simd.kernel import inner, kernel
from ssmith.ops.simd.tiles import clear, load_columns, store_columns
from ssmith.ops.simd.vectors import broadcast, load, load_first, next_task, sigmoid, store, store_first, width

STEPS = 32  # time steps of a chunk


class Conv(NamedTuple):
    """Inputs and sizes. Tensors are addresses, 0 where absent; strides count floats."""

    x: int
    weight: int
    bias: int
    initial_state: int
    x_stride: int
    channels: int
    kernel: int
    silu: int


class Gradients(NamedTuple):
    """Addresses of what comes in (`dstate` 0 where absent) and goes out; the last two per sequence."""

    dy: int
    dstate: int
    dx: int
    dinitial_state: int
    dweight: int  # (sequences, C, K)
    dbias: int  # (sequences, C)
    dy_stride: int


def forward_scratch(kernel: int, lanes: int) -> int:
    """Floats of scratch memory that `conv_forward` needs."""
    return (2 * kernel + STEPS) * lanes


def backward_scratch(kernel: int, lanes: int) -> int:
    """Floats of scratch memory that `conv_backward` needs."""
    return (5 * kernel + 2 * STEPS + 1) * lanes


@kernel
def conv_forward(lanes, p, borders, y, final_state, scratch, tickets, tasks):
    """Runs tasks as long as there are any. `borders` are the rows where sequences begin, and the end."""
    row = 4 * width(lanes)
    weights, past = scratch, scratch + p.kernel * row
    inputs = past + (p.kernel - 1) * row
    vectors = (p.channels + width(lanes) - 1) // width(lanes)
    task = next_task(tickets)
    while task < tasks:
        sequence, channel = task // vectors, task % vectors * width(lanes)
        begin, end = borders[sequence], borders[sequence + 1]
        count = min(width(lanes), p.channels - channel)
        state = 4 * (sequence * p.channels + channel) * (p.kernel - 1)
        load_columns(lanes, p.weight + 4 * channel * p.kernel, p.kernel, count, 1.0, weights)
        if p.initial_state != 0:
            load_columns(lanes, p.initial_state + state, p.kernel - 1, count, 1.0, past)
        else:
            clear(lanes, past, p.kernel - 1)
        for start in range(begin, end, STEPS):
            steps = min(STEPS, end - start)
            stage(lanes, p, inputs, start, steps, channel, count)
            convolve(lanes, p, past, weights, y, start, steps, channel, count)
            copy_rows(lanes, past + steps * row, past, p.kernel - 1)
        store_columns(lanes, past, p.kernel - 1, count, final_state + state)
        task = next_task(tickets)


@inner
def stage(lanes, p, inputs, start, steps, channel, count):
    """Copies a chunk of x."""
    for t in range(steps):
        x = load_first(lanes, p.x, (start + t) * p.x_stride + channel, count)
        store(inputs, t * width(lanes), x)


@inner
def copy_rows(lanes, source, target, rows):
    """Copies rows from first to last; the target may lie before the source and overlap it."""
    for row in range(rows):
        store(target, row * width(lanes), load(lanes, source, row * width(lanes)))


@inner
def convolve(lanes, p, past, weights, y, start, steps, channel, count):
    """The outputs of a chunk."""
    bias = broadcast(lanes, np.float32(0.0))
    if p.bias != 0:
        bias = load_first(lanes, p.bias, channel, count)
    for t in range(steps):
        total = bias
        for k in range(p.kernel):
            tap = load(lanes, weights, k * width(lanes))
            total = total + load(lanes, past, (t + k) * width(lanes)) * tap
        if p.silu != 0:
            total = total * sigmoid(total)
        store_first(y, (start + t) * p.channels + channel, total, count)


@kernel
def conv_backward(lanes, p, g, borders, scratch, tickets, tasks):
    """Runs tasks as long as there are any; what the activation was given is made again."""
    row = 4 * width(lanes)
    weights, dweights = scratch, scratch + p.kernel * row
    dstate = dweights + (p.kernel + 1) * row  # the last row of dweights is the bias's
    past = dstate + (p.kernel - 1) * row
    inputs = past + (p.kernel - 1) * row
    d_total = inputs + STEPS * row  # STEPS rows of the chunk, then the K - 1 after it
    vectors = (p.channels + width(lanes) - 1) // width(lanes)
    task = next_task(tickets)
    while task < tasks:
        sequence, channel = task // vectors, task % vectors * width(lanes)
        begin, end = borders[sequence], borders[sequence + 1]
        count = min(width(lanes), p.channels - channel)
        place = sequence * p.channels + channel
        load_columns(lanes, p.weight + 4 * channel * p.kernel, p.kernel, count, 1.0, weights)
        clear(lanes, dweights, p.kernel + 1)
        clear(lanes, d_total, STEPS + p.kernel - 1)
        clear(lanes, dstate, p.kernel - 1)
        if g.dstate != 0:
            load_columns(lanes, g.dstate + 4 * place * (p.kernel - 1), p.kernel - 1, count, 1.0, dstate)
        chunks = (end - begin + STEPS - 1) // STEPS
        for chunk in range(chunks - 1, -1, -1):
            start = begin + chunk * STEPS
            steps = min(STEPS, end - start)
            stage_past(lanes, p, past, begin, start, place, channel, count)
            stage(lanes, p, inputs, start, steps, channel, count)
            before_activation(lanes, p, g, past, weights, d_total, start, steps, channel, count)
            correlate(lanes, p, past, d_total, dweights, steps)
            spread(lanes, p, g, weights, d_total, dstate, start, steps, end, channel, count)
            copy_rows(lanes, d_total, d_total + STEPS * row, p.kernel - 1)
        spread_past(lanes, p, g, weights, d_total, dstate, end - begin, place, past, count)
        store_columns(lanes, dweights, p.kernel, count, g.dweight + 4 * place * p.kernel)
        store_first(g.dbias, place, load(lanes, dweights, p.kernel * width(lanes)), count)
        task = next_task(tickets)


@inner
def stage_past(lanes, p, past, begin, start, place, channel, count):
    """The K - 1 inputs before a chunk; a chunk that is not a sequence's first has as many before it."""
    if start > begin:
        stage(lanes, p, past, start - p.kernel + 1, p.kernel - 1, channel, count)
    elif p.initial_state != 0:
        state = p.initial_state + 4 * place * (p.kernel - 1)
        load_columns(lanes, state, p.kernel - 1, count, 1.0, past)
    else:
        clear(lanes, past, p.kernel - 1)


@inner
def before_activation(lanes, p, g, past, weights, d_total, start, steps, channel, count):
    """The gradients of a chunk's sums over taps."""
    bias, one = broadcast(lanes, np.float32(0.0)), broadcast(lanes, np.float32(1.0))
    if p.bias != 0:
        bias = load_first(lanes, p.bias, channel, count)
    for t in range(steps):
        dy = load_first(lanes, g.dy, (start + t) * g.dy_stride + channel, count)
        if p.silu != 0:
            total = bias
            for k in range(p.kernel):
                tap = load(lanes, weights, k * width(lanes))
                total = total + load(lanes, past, (t + k) * width(lanes)) * tap
            s = sigmoid(total)
            dy = dy * (s * (one + total * (one - s)))
        store(d_total, t * width(lanes), dy)


@inner
def correlate(lanes, p, past, d_total, dweights, steps):
    """The shares of a chunk in the gradients of weight and bias."""
    for k in range(p.kernel):
        at = k * width(lanes)
        total = load(lanes, dweights, at)
        for t in range(steps):
            total = total + load(lanes, d_total, t * width(lanes)) * load(lanes, past, t * width(lanes) + at)
        store(dweights, at, total)
    total = load(lanes, dweights, p.kernel * width(lanes))
    for t in range(steps):
        total = total + load(lanes, d_total, t * width(lanes))
    store(dweights, p.kernel * width(lanes), total)


@inner
def spread(lanes, p, g, weights, d_total, dstate, start, steps, end, channel, count):
    """dx of a chunk: each input is read by K sums, and the last K - 1 by the final state."""
    for t in range(steps):
        dx = broadcast(lanes, np.float32(0.0))
        for j in range(p.kernel):
            tap = load(lanes, weights, (p.kernel - 1 - j) * width(lanes))
            dx = dx + load(lanes, d_total, (t + j) * width(lanes)) * tap
        kept = start + t - (end - p.kernel + 1)
        if kept >= 0:
            dx = dx + load(lanes, dstate, kept * width(lanes))
        store_first(g.dx, (start + t) * p.channels + channel, dx, count)


@inner
def spread_past(lanes, p, g, weights, d_total, dstate, length, place, past, count):
    """The gradient of the initial state; a sequence shorter than it hands a part of it on."""
    for i in range(p.kernel - 1):
        dx = broadcast(lanes, np.float32(0.0))
        for j in range(p.kernel - 1 - i, p.kernel):
            tap = load(lanes, weights, (p.kernel - 1 - j) * width(lanes))
            dx = dx + load(lanes, d_total, (i + j - p.kernel + 1) * width(lanes)) * tap
        if i >= length:
            dx = dx + load(lanes, dstate, (i - length) * width(lanes))
        store(past, i * width(lanes), dx)
    state = g.dinitial_state + 4 * place * (p.kernel - 1)
    store_columns(lanes, past, p.kernel - 1, count, state)
