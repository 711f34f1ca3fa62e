"""Rows of benchmarks/results/*.csv: what was measured, on what, at which commit."""

from __future__ import annotations

import csv
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

RESULTS = Path(__file__).parent / "results"
FIELDS = ["date", "commit", "machine", "threads", "claim", "shape", "dtype", "what", "median_ms", "ratio"]


def interleaved(
    functions: dict[str, Callable[[], object]], rounds: int, warm_up: int = 1
) -> dict[str, float]:
    """Median milliseconds of each function, called in turn: a slow moment meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for round_ in range(warm_up + rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            if round_ >= warm_up:
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name: median(values) for name, values in times.items()}


def record(claim: str, shape: str, dtype: str, threads: int, medians: dict[str, float], base: str) -> None:
    """Appends to results/<claim>.csv, and prints, one row per measured thing; ratios are against `base`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{claim}.csv"
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        for what, value in medians.items():
            ratio = value / medians[base]
            writer.writerow(
                {
                    "date": time.strftime("%Y-%m-%d"),
                    "commit": _commit(),
                    "machine": _processor(),
                    "threads": threads,
                    "claim": claim,
                    "shape": shape,
                    "dtype": dtype,
                    "what": what,
                    "median_ms": f"{value:.3f}",
                    "ratio": f"{ratio:.3f}",
                }
            )
            print(f"{claim:<12} {shape:<28} {dtype:<9} {what:<24} {value:10.2f} ms  {ratio:7.3f} x {base}")


def _commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
