"""`ssmith generate MODEL -p "..."`: writes on from a prompt, streaming."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from tyro.conf import Positional, UseAppendAction

from ssmith.cli.flags import flag, parse_flags

DESCRIPTION = "Writes on from a prompt; the text goes to standard output as it comes."


@dataclass
class GenerateFlags:
    model: Annotated[Positional[str], flag("MODEL", "a model folder")]
    prompt: Annotated[str, flag("TEXT", "what to write on from; - reads standard input", "-p")] = ""
    max_tokens: Annotated[int, flag("N", "most new tokens (default: 200)", "-m", "--max-new-tokens")] = 200
    temperature: Annotated[float, flag("X", "0: the likeliest token (default: 0)", "-t", "--temp")] = 0.0
    top_k: Annotated[int | None, flag("N", "only the N likeliest tokens")] = None
    top_p: Annotated[float | None, flag("X", "only the likeliest tokens that reach X together")] = None
    min_p: Annotated[float | None, flag("X", "only tokens X times as likely as the likeliest")] = None
    seed: Annotated[int | None, flag("N", "makes sampling repeatable")] = None
    stop: UseAppendAction[
        Annotated[tuple[str, ...], flag("TEXT", "a string that ends the text; may be given again")]
    ] = ()


def run(arguments: Sequence[str]) -> int:
    flags = parse_flags(GenerateFlags, "generate", DESCRIPTION, arguments)
    from ssmith.formats import load

    model = load(flags.model)
    prompt = _read_prompt() if flags.prompt == "-" else flags.prompt
    pieces = model.stream(
        prompt,
        flags.max_tokens,
        flags.temperature,
        flags.top_k,
        flags.top_p,
        flags.min_p,
        flags.seed,
        flags.stop,
    )
    sys.stdout.write(prompt)
    for piece in pieces:
        sys.stdout.write(piece.text)
        sys.stdout.flush()
    sys.stdout.write("\n")
    return 0


def _read_prompt() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"the prompt on standard input is not UTF-8 (byte {error.start})") from error
