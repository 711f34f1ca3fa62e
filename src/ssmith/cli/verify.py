"""`ssmith verify RECIPE|FOLDER`: the proof of every gradient, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional

from ssmith.cli.flags import flag, parse_flags
from ssmith.config.load import load_recipe

DESCRIPTION = """Proves the gradients of a model: every parameter against finite differences in float64,
compiled kernels against the reference, and split, padded, packed, checkpointed = whole.

Exit code 1 when a check fails."""


@dataclass
class VerifyFlags:
    model: Annotated[Positional[str], flag("RECIPE|FOLDER", "a recipe, a TOML file or a model folder")]
    seed: Annotated[int, flag("N", "of the weights of a recipe and of the inputs (default: 0)")] = 0


def run(arguments: Sequence[str]) -> int:
    flags = parse_flags(VerifyFlags, "verify", DESCRIPTION, arguments)
    subject = _subject(flags.model)
    from rich.console import Console

    from ssmith.cli.notes import show_log_messages
    from ssmith.verification import verify

    console = Console(highlight=False, markup=False, emoji=False)
    show_log_messages(console)
    with console.status("verifying") as status:
        report = verify(
            subject,
            seed=flags.seed,
            progress=lambda done, total, what: status.update(f"verifying {done}/{total}: {what}"),
        )
    for line in report.to_text().splitlines():
        console.print(line, style=_style(line), soft_wrap=True)
    return 0 if report.ok else 1


def _subject(name: str) -> Any:
    """The settings of a recipe, or the model in a folder."""
    if not Path(name).is_dir():
        return load_recipe(name).model
    from ssmith.formats import load

    return load(name)


def _style(line: str) -> str | None:
    return "bold red" if "FAILED" in line else None
