"""Work shared among threads. Kernels release the GIL, so Python's own threads are enough.

Numba's parallel loops are not used: one of their threading layers aborts when two Python threads call it, the
other dies in a forked child (a DataLoader's worker).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import torch

_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def share(work: Callable[[int], object], tasks: int) -> None:
    """Calls `work(tickets)` in as many threads as torch uses, or as there are tasks.

    `tickets` is the address of a counter from which kernels draw the numbers of tasks, `next_task(tickets)`,
    until they reach the end: a thread takes Python's lock once, not at every task, and none waits for a slow
    one. Which thread takes which task is chance, so results are reproducible only when each task writes to a
    place of its own and computes the same whoever its neighbours are. An exception is raised here.
    """
    counter = np.zeros(1, np.int64)
    tickets = counter.ctypes.data
    threads = min(torch.get_num_threads(), tasks)
    # The calling thread works too: should every pool thread be busy for somebody else, it does all the work.
    helpers: list[Future[object]] = []
    try:
        for _ in range(threads - 1):
            helpers.append(_executor().submit(work, tickets))
        if tasks > 0:
            work(tickets)
    finally:
        waiting = [h for h in helpers if not h.cancel()]
        _wait_for(waiting)
    for helper in waiting:
        helper.result()


def _wait_for(futures: list[Future[object]]) -> None:
    """Waits for all, through Ctrl-C too: nobody may still write when the caller's memory goes."""
    interrupt: KeyboardInterrupt | None = None
    while not all(future.done() for future in futures):
        try:
            wait(futures)
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


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
