"""Derivatives of a function of one number by central differences, extrapolated to step zero."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

# A loss is a sum of many rounded numbers: measured, it moves by one or two units in its last place.
ROUNDING = 4 * sys.float_info.epsilon
LEVELS = 16
COLUMNS = 4  # order 8: more would carry coarse steps along, which say nothing near a sharp bend


class Derivative(NamedTuple):
    """A derivative at 0, how far it is off by its own account, and the part of that which is rounding."""

    value: float
    error: float
    rounding: float


def derivative(f: Callable[[float], float], step: float, claimed: float, near: float) -> Derivative:
    """f'(0) by Ridders' method: steps are halved, differences extrapolated (order 4 from the second on).

    It starts at `step` and stops when the estimate is within `near` of the claimed value, so that a right
    claim is cheap; or when it is certain to a tenth of that, or rounding outweighs what a smaller step could
    still gain, so that no claim fails for want of a good estimate.

    Source: Ridders, Advances in Engineering Software 4 (1982) 75.
    """
    best = Derivative(math.nan, math.inf, math.inf)
    previous: list[float] = []
    for level in range(LEVELS):
        h = step / 2**level
        plus, minus = f(h), f(-h)
        rounding = ROUNDING * max(abs(plus), abs(minus)) / h
        current = _extrapolate((plus - minus) / (2 * h), previous)
        estimates = [
            Derivative(value, max(abs(value - lower), abs(value - older)) + rounding, rounding)
            for value, lower, older in zip(current[1:], current, previous, strict=False)
        ]
        if estimates:
            here = min(estimates, key=lambda d: d.error)
            if abs(here.value - claimed) <= near:
                return here
            best = min(best, here, key=lambda d: d.error)
        if level >= 3 and (best.error <= near / 10 or rounding > max(best.error / 2, near)):
            break
        previous = current
    return best


def relative_error(found: Derivative, claimed: float, norm: float, tolerance: float) -> float:
    """|found - claimed| / norm, with a norm no smaller than makes found's rounding one tolerance."""
    difference = abs(found.value - claimed)
    return 0.0 if difference == 0 else difference / max(norm, found.rounding / tolerance)


def _extrapolate(difference: float, previous: list[float]) -> list[float]:
    """The next row of Richardson's table: each column takes one more even power of the step out."""
    row = [difference]
    for order, older in enumerate(previous[: COLUMNS - 1], 1):
        row.append(row[-1] + (row[-1] - older) / (4**order - 1))
    return row
