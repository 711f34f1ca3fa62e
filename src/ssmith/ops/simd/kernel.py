"""Compilation of kernels: once per machine, announced, and never an old one after its source changed."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import event

import ssmith
from ssmith.ops.simd import vectors

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_LINE = 64  # bytes
_compiling = threading.RLock()


def inner(function: Callable[..., Any]) -> Any:
    """Makes a part of a kernel: compiled into each kernel that calls it. It must not take or return a vector.

    Numba does not inline such a function, and a vector would travel through memory at each call.
    """
    return numba.njit(**_OPTIONS)(function)


def kernel(function: Callable[..., Any]) -> Any:
    """Makes a kernel: it runs without the GIL, its machine code is kept on disk where that is possible."""
    try:
        return numba.njit(cache=True, **_OPTIONS)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache folder can be written
        return numba.njit(**_OPTIONS)(function)


def host_lanes(*sources: str | None) -> vectors.Lanes:
    """The `Lanes` of this machine, with the fingerprint of a kernel written in the files `sources`."""
    digest = hashlib.sha256(ssmith.__version__.encode())
    for source in (*sorted(Path(__file__).parent.glob("*.py")), *sources):
        assert source is not None
        digest.update(Path(source).read_bytes())
    return vectors.Lanes(vectors.host_width(), digest.hexdigest()[:12])


def prepare(kernel: Any, *arguments: Any) -> None:
    """Loads `kernel` from the cache, or compiles it, for arguments of these types.

    To be called before the kernel runs in several threads: each would wait for the compiler.
    """
    if kernel.overloads:
        return
    with _compiling, event.install_listener("numba:compile", _ANNOUNCEMENT):
        kernel.compile(tuple(numba.typeof(a) for a in arguments))


def aligned_floats(count: int) -> np.ndarray:
    """Uninitialised scratch memory that begins on a cache line; a vector across two lines costs double."""
    memory = np.empty(count + _LINE // 4, np.float32)
    skipped = -memory.ctypes.data % _LINE // 4
    return memory[skipped : skipped + count]


class _Announcement(event.Listener):
    """Says that a compilation begins: it takes seconds, and a silent pause looks like a fault."""

    said = False

    def on_start(self, event: Any) -> None:
        if not self.said:
            self.said = True
            logging.getLogger("ssmith").info("compiling CPU kernels, once per machine ...")

    def on_end(self, event: Any) -> None:
        pass


_ANNOUNCEMENT = _Announcement()
