"""Sums over parts that several tasks have made, in a fixed order: the same bits for any number of threads."""

from __future__ import annotations

from torch import Tensor

from ssmith.ops.simd.kernel import host_lanes, kernel, prepare
from ssmith.ops.simd.threads import share
from ssmith.ops.simd.vectors import load_first, next_task, store_first, width

LANES = host_lanes(__file__)
BLOCKS = 64  # vectors of a task: less is not worth waking a thread


def sum_first(parts: Tensor, total: Tensor) -> None:
    """total = parts.sum(0); both contiguous float32 on the CPU, parts of shape (count, *total.shape)."""
    arguments = (LANES, parts.data_ptr(), parts.shape[0], total.numel(), total.data_ptr())
    tasks = -(-total.numel() // (LANES.width * BLOCKS))
    prepare(_sum_first, *arguments, 0, 0)
    share(lambda tickets: _sum_first(*arguments, tickets, tasks), tasks)


@kernel
def _sum_first(lanes, parts, count, size, total, tickets, tasks):
    """total[i] = sum over k of parts[k, i], in the order of k."""
    task = next_task(tickets)
    while task < tasks:
        begin = task * BLOCKS * width(lanes)
        for at in range(begin, min(begin + BLOCKS * width(lanes), size), width(lanes)):
            here = min(width(lanes), size - at)
            value = load_first(lanes, parts, at, here)
            for k in range(1, count):
                value = value + load_first(lanes, parts, k * size + at, here)
            store_first(total, at, value, here)
        task = next_task(tickets)
