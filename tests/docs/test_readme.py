"""Every block of README.md is run, training shortened; a newcomer's first 35 lines hold all they need."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
SHORT = ["--batch-size", "2", "--max-seq-len", "64"]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the blocks run one after another, with the reader's own texts in it."""
    folder = tmp_path_factory.mktemp("readme")
    texts = folder / "my_texts"
    texts.mkdir()
    for i in range(3):
        (texts / f"{i}.txt").write_text(f"Text number {i}. It has a few words of its own.\n" * 20)
    return folder


def run(command: list[str], cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
    return done.stdout


def run_line(line: str, cwd: Path) -> None:
    words = shlex.split(line, comments=True)
    if words[:2] == ["pip", "install"]:
        assert words == ["pip", "install", "."]  # tests/test_wheel.py installs a wheel of this checkout
    elif words[0] == "make":
        assert "pip install" in run(["make", "--dry-run", "--always-make", *words[1:]], ROOT)
    else:
        assert words[0] == "ssmith", line
        if words[1] == "train":
            length = [] if "--epochs" in words else ["--steps", "12"]
            words += length + SHORT
        assert run([sys.executable, "-m", "ssmith.cli.main", *words[1:]], cwd).strip()


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_block_runs(number: int, workplace: Path) -> None:
    language, text = BLOCKS[number]
    if language == "python":
        run([sys.executable, "-W", "error", "-c", text], workplace)
        return
    assert language == "bash", f"block {number} is {language}: teach this test to run it"
    for line in text.splitlines():
        run_line(line, workplace)


def test_first_35_lines_are_enough() -> None:
    start = "\n".join(README.splitlines()[:35])
    for needed in ("pip install .", "ssmith train", "ssmith generate out -p", "make demo", "make test"):
        assert needed in start, needed
