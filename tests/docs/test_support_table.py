"""The README's table of what there is, made from the code; run as a program, this file writes it."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from ssmith.config.schema import FLOAT_DTYPES, MIXERS
from ssmith.formats.hf import FAMILIES
from ssmith.ops.causal_conv1d import causal_conv1d_backend
from ssmith.ops.rms_norm import rms_norm_backend
from ssmith.ops.selective_scan import selective_scan_backend

README = Path(__file__).parents[2] / "README.md"
START, END = "<!-- made by tests/docs/test_support_table.py -->\n", "<!-- end -->"


def table() -> str:
    x = torch.zeros(1, 2, 1)
    backends = {
        "selective_scan": selective_scan_backend(x),
        "causal_conv1d": causal_conv1d_backend(x, x[0]),
        "rms_norm": rms_norm_backend(x),
    }
    rows = [
        ("blocks", ", ".join(MIXERS)),
        ("training", f"from scratch, AdamW, {', '.join(FLOAT_DTYPES)}"),
        ("model folders", ", ".join(sorted(FAMILIES))),
        *((f"`{name}`, float32 on a CPU", choice.backend) for name, choice in backends.items()),
    ]
    lines = ["| what | here |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines) + "\n"


def test_table_is_what_the_code_says() -> None:
    found = re.search(
        re.escape(START) + r"(.*?)" + re.escape(END), README.read_text(encoding="utf-8"), re.DOTALL
    )
    assert found is not None
    assert found.group(1) == table()


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(START)
    README.write_text(before + START + table() + END + rest.split(END, 1)[1], encoding="utf-8")
