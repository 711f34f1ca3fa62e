"""Parts of kernels that move tiles: rows of vectors in scratch memory."""

from __future__ import annotations

import numpy as np

from ssmith.ops.simd.kernel import inner
from ssmith.ops.simd.vectors import broadcast, get, put, store, width


@inner
def load_columns(lanes, matrix, columns, count, scale, tile):
    """tile[n, lane] = scale matrix[lane, n] for the first `count` lanes, 0 for the others."""
    for lane in range(width(lanes)):
        for n in range(columns):
            value = get(matrix, lane * columns + n) * np.float32(scale) if lane < count else np.float32(0.0)
            put(tile, n * width(lanes) + lane, value)


@inner
def store_columns(lanes, tile, columns, count, matrix):
    """matrix[lane, n] = tile[n, lane] for the first `count` lanes."""
    for lane in range(count):
        for n in range(columns):
            put(matrix, lane * columns + n, get(tile, n * width(lanes) + lane))


@inner
def clear(lanes, tile, rows):
    """Fills a tile with zeros."""
    zero = broadcast(lanes, np.float32(0.0))
    for row in range(rows):
        store(tile, row * width(lanes), zero)
