"""The kernels of rms_norm: rows one after another, a vector of channels at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ssmith.ops.simd.kernel import inner, kernel
from ssmith.ops.simd.tiles import clear
from ssmith.ops.simd.vectors import (
    FOLDED,
    broadcast,
    fold,
    get,
    load,
    load_first,
    next_task,
    put,
    store,
    store_first,
    width,
)

ROWS = 64  # of a task; fixed, so that the weight's gradient is summed the same way by any number of threads


class Norm(NamedTuple):
    """Inputs and sizes. Tensors are addresses, `weight` 0 where absent; strides count floats."""

    x: int
    weight: int
    x_stride: int
    rows: int
    channels: int
    eps: float


@inner
def sum_of_lanes(partial):
    """The sum of 16 floats, in pairs."""
    step = FOLDED // 2
    while step > 0:
        for i in range(step):
            put(partial, i, get(partial, i) + get(partial, i + step))
        step //= 2
    return get(partial, 0)


@kernel
def norm_forward(lanes, p, y, inverse, scratch, tickets, tasks):
    """Runs tasks as long as there are any; keeps 1 / rms of each row."""
    task = next_task(tickets)
    while task < tasks:
        for row in range(task * ROWS, min((task + 1) * ROWS, p.rows)):
            total = broadcast(lanes, np.float32(0.0))
            for channel in range(0, p.channels, width(lanes)):
                x = load_first(lanes, p.x, row * p.x_stride + channel, p.channels - channel)
                total = total + x * x
            store(scratch, 0, fold(total))
            mean = sum_of_lanes(scratch) / np.float32(p.channels)
            scale = np.float32(1.0) / np.sqrt(mean + np.float32(p.eps))
            put(inverse, row, scale)
            scales = broadcast(lanes, scale)
            for channel in range(0, p.channels, width(lanes)):
                count = p.channels - channel
                value = load_first(lanes, p.x, row * p.x_stride + channel, count) * scales
                if p.weight != 0:
                    value = value * load_first(lanes, p.weight, channel, count)
                store_first(y, row * p.channels + channel, value, count)
        task = next_task(tickets)


@kernel
def norm_backward(lanes, p, dy, dy_stride, inverse, dx, dweight, scratch, tickets, tasks):
    """Runs tasks as long as there are any. `dweight` is (tasks, channels): each task's own sum.

    With s = 1 / rms and g = dy weight: dx = s (g - x s^2 mean(g x)), dweight = sum over rows of dy x s.
    """
    vectors = (p.channels + width(lanes) - 1) // width(lanes)
    sums = scratch + 4 * FOLDED
    task = next_task(tickets)
    while task < tasks:
        clear(lanes, sums, vectors)
        for row in range(task * ROWS, min((task + 1) * ROWS, p.rows)):
            scale = get(inverse, row)
            scales, total = broadcast(lanes, scale), broadcast(lanes, np.float32(0.0))
            for channel in range(0, p.channels, width(lanes)):
                count = p.channels - channel
                x = load_first(lanes, p.x, row * p.x_stride + channel, count)
                product = load_first(lanes, dy, row * dy_stride + channel, count) * x
                store(sums, channel, load(lanes, sums, channel) + product * scales)
                if p.weight != 0:
                    product = product * load_first(lanes, p.weight, channel, count)
                total = total + product
            store(scratch, 0, fold(total))
            mean = sum_of_lanes(scratch) / np.float32(p.channels)
            shrink = broadcast(lanes, mean * scale * scale)
            for channel in range(0, p.channels, width(lanes)):
                count = p.channels - channel
                g = load_first(lanes, dy, row * dy_stride + channel, count)
                if p.weight != 0:
                    g = g * load_first(lanes, p.weight, channel, count)
                x = load_first(lanes, p.x, row * p.x_stride + channel, count)
                store_first(dx, row * p.channels + channel, (g - x * shrink) * scales, count)
        for channel in range(0, p.channels, width(lanes)):
            store_first(
                dweight, task * p.channels + channel, load(lanes, sums, channel), p.channels - channel
            )
        task = next_task(tickets)
