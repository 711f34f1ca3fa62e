"""Flags from dataclasses: the one place that calls tyro, so that every verb behaves alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import tyro

T = TypeVar("T")


def flag(metavar: str, text: str, *aliases: str) -> Any:
    """A flag's annotation: what its value is called, its help text, other spellings."""
    return tyro.conf.arg(metavar=metavar, help=text, help_behavior_hint="", aliases=aliases or None)


def parse_flags(cls: type[T], verb: str, description: str, arguments: Sequence[str]) -> T:
    """The dataclass of a verb's flags, filled from the command line; wrong ones exit with 2.

    tyro writes usage and the nearest flag to standard error.
    """
    return tyro.cli(
        cls,
        prog=f"ssmith {verb}",
        description=description,
        args=list(arguments),
        config=(tyro.conf.FlagCreatePairsOff,),
    )
