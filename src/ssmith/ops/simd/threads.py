"""Work shared among threads. Kernels release the GIL, so Python's own threads are enough.

Numba's parallel loops are not used: one of their threading layers aborts when two Python threads call it, the
other dies in a forked child (a DataLoader's worker).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

_PIECES_PER_THREAD = 8
_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def share(work: Callable[[int, int], object], tasks: int) -> None:
    """Calls `work(first, last)` on pieces of range(tasks), with as many threads as torch uses.

    Which thread takes which piece is chance, so results are reproducible only when each task writes to a
    place of its own and computes the same whoever its neighbours are. An exception in a piece is raised here.
    """
    threads = min(torch.get_num_threads(), tasks)
    if threads <= 1:
        if tasks > 0:
            work(0, tasks)
        return
    pieces = iter(_pieces(tasks, threads))
    taken = threading.Lock()
    # The calling thread works too: should every pool thread be busy for somebody else, it does all the work.
    helpers = [_executor().submit(_drain, work, pieces, taken) for _ in range(threads - 1)]
    try:
        _drain(work, pieces, taken)
    finally:
        waiting = [h for h in helpers if not h.cancel()]
        for helper in waiting:
            helper.exception()  # waits: nobody may still write when the caller goes on
    for helper in waiting:
        helper.result()


def _pieces(tasks: int, threads: int) -> Iterator[tuple[int, int]]:
    size = max(1, tasks // (threads * _PIECES_PER_THREAD))
    return ((first, min(first + size, tasks)) for first in range(0, tasks, size))


def _drain(
    work: Callable[[int, int], object], pieces: Iterator[tuple[int, int]], taken: threading.Lock
) -> None:
    while True:
        with taken:
            piece = next(pieces, None)
        if piece is None:
            return
        work(*piece)


def _executor() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            workers = max(32, os.cpu_count() or 1)
            _pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="ssmith")
        return _pool


def _forget_pool() -> None:
    """A forked child has none of its parent's threads, and may have inherited a lock that somebody held."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
