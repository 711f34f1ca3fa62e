"""What a proof found: rows, and a table of them in plain text."""

from __future__ import annotations

import math
from dataclasses import dataclass

_HEADINGS = ("check", "of", "shape", "error", "tolerance", "", "")
_RIGHT_ALIGNED = (3, 4)


@dataclass(frozen=True)
class VerifyRow:
    """One thing that was compared.

    Attributes:
        check: what was proved: "gradient", "elements", "split = whole", "backend cpu", ...
        name: the parameter, or what was compared: "logits", "state", ...
        shape: of the parameter; () for what has none.
        error: relative, as `detail` says where it is not to the norm of what was compared.
        tolerance: the largest error that passes.
        ok: whether the error is within the tolerance; never when it is NaN.
        detail: what a reader needs beside the numbers; may be empty.
    """

    check: str
    name: str
    shape: tuple[int, ...]
    error: float
    tolerance: float
    ok: bool
    detail: str = ""

    @property
    def size(self) -> int:
        """How many numbers the parameter has; 1 for what has no shape."""
        return math.prod(self.shape)


def row(
    check: str, name: str, error: float, tolerance: float, shape: tuple[int, ...] = (), detail: str = ""
) -> VerifyRow:
    """A row that passes when the error is within the tolerance."""
    return VerifyRow(check, name, shape, error, tolerance, error <= tolerance, detail)


@dataclass(frozen=True)
class VerifyReport:
    """All rows, in the order of the checks, and the seconds they took."""

    rows: tuple[VerifyRow, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every row passed."""
        return all(r.ok for r in self.rows)

    @property
    def failures(self) -> tuple[VerifyRow, ...]:
        """The rows that did not pass."""
        return tuple(r for r in self.rows if not r.ok)

    def to_text(self) -> str:
        """A table, one line per row, and a last line that says how it ended."""
        table = [_HEADINGS, *map(_cells, self.rows)]
        widths = [max(len(line[i]) for line in table) for i in range(len(_HEADINGS))]
        return "\n".join([*(_line(cells, widths) for cells in table), "", self.summary()])

    def summary(self) -> str:
        """One line: how many rows passed, or which did not."""
        if self.ok:
            return f"all {len(self.rows)} rows hold, {self.seconds:.1f} s"
        failed = self.failures
        named = ", ".join(f"{r.check} {r.name}" for r in failed[:5]) + (", ..." if len(failed) > 5 else "")
        return f"{len(failed)} of {len(self.rows)} rows FAILED ({named}), {self.seconds:.1f} s"


def _cells(r: VerifyRow) -> tuple[str, ...]:
    verdict = "ok" if r.ok else "FAILED"
    shape = " x ".join(map(str, r.shape))
    return (r.check, r.name, shape, f"{r.error:.1e}", f"{r.tolerance:.0e}", verdict, r.detail)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    padded = (
        cell.rjust(width) if i in _RIGHT_ALIGNED else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded).rstrip()
