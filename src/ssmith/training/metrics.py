"""What a run records: metrics.jsonl, one row a step, and the peak of memory."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO


class MetricsFile:
    """Appends rows to a metrics.jsonl; every row is on disk's side of the program when `write` returns."""

    def __init__(self, path: Path | None) -> None:
        self._file: IO[str] | None = None if path is None else path.open("w", encoding="utf-8")

    def write(self, row: Mapping[str, float | int]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def peak_memory_gib() -> float:
    """The most resident memory this process has had, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 30 if sys.platform == "darwin" else 1 << 20)  # bytes there, KiB elsewhere
