"""The wheel works outside the checkout: built, installed into an empty folder, it trains ten steps."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

TEN_STEPS = """
import ssmith, sys
assert sys.argv[1] in ssmith.__file__, ssmith.__file__
config = ssmith.ModelConfig(vocab_size=257, hidden_size=16, repeats=1)
report = ssmith.train(config, None, ssmith.TrainConfig(steps=10, batch_size=2, max_seq_len=32, out="model"))
assert report.steps == 10 and len(report.losses) == 10
print(ssmith.load("model").generate("It", max_tokens=3))
"""


def run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def test_wheel_installs_and_trains(tmp_path: Path) -> None:
    run(
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path),
        str(ROOT),
        cwd=tmp_path,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("ssmith/py.typed", "ssmith/config/recipes/tiny.toml"):
        assert needed in names
    assert not [n for n in names if n.startswith(("tests/", "benchmarks/"))]
    site = tmp_path / "site"
    # no dependencies: the ones under test are already here
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(wheel),
        cwd=tmp_path,
    )
    away = tmp_path / "away"
    away.mkdir()
    env = os.environ | {"PYTHONPATH": str(site)}
    run(sys.executable, "-c", TEN_STEPS, str(site), cwd=away, env=env)
    assert (away / "model" / "model.safetensors").is_file()
