"""The command line: verbs, exit codes, one message for each failure, and no torch before it is needed."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ssmith
from ssmith.cli.main import VERBS, main
from ssmith.models import HybridLM

TINY = """
[model]
vocab_size = 257
hidden_size = 16
[train]
steps = 6
batch_size = 2
max_seq_len = 32
log_every = 2
eval_every = 3
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(TINY)
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small trained model."""
    out = tmp_path_factory.mktemp("cli") / "model"
    config = ssmith.ModelConfig(vocab_size=257, hidden_size=16)
    ssmith.train(config, None, ssmith.TrainConfig(steps=2, batch_size=2, max_seq_len=32, out=str(out)))
    return str(out)


def message(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error."""
    (line,) = capsys.readouterr().err.strip().splitlines()
    return line


@pytest.mark.parametrize("arguments", [["--help"], ["-h"]])
def test_help_lists_the_verbs(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {verb} " in text for verb in VERBS)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from ssmith.cli.main import main; main(['--help']);"
        "print(sorted({'torch', 'numba', 'transformers', 'numpy', 'tyro', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_needs_no_torch(verb: str) -> None:
    code = f"""
import sys
from ssmith.cli.main import main
try:
    main([{verb!r}, "--help"])
except SystemExit as end:
    print(end.code, "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"usage: ssmith {verb}" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 False"


def test_no_verb_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: ssmith VERB" in capsys.readouterr().err


def test_a_wrong_verb_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "unknown verb 'trian'; did you mean 'train'?" in capsys.readouterr().err


def test_a_wrong_flag_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", "--batch-sise", "3"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert "--batch-sise" in error
    assert "--batch-size" in error


def test_train_prints_a_panel_lines_and_what_to_try(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    flags = ["--steps", "4", "--lr", "0.01", "--optim.warmup-steps", "2", "--seed", "3"]
    assert main(["train", recipe, "--out", out, *flags]) == 0
    text = capsys.readouterr().out
    for needed in (
        "parameters",
        "selective_scan: ",
        "2 rows x 32 tokens; 4 steps",
        "done: 4 steps",
        "bits per byte",
    ):
        assert needed in text, needed
    assert [line.split()[1] for line in text.splitlines() if line.startswith("step")] == ["1/4", "2/4", "4/4"]
    assert [line.split()[1] for line in text.splitlines() if line.startswith("val")] == ["3", "4"]
    assert f"try:  ssmith generate {out}" in text
    assert "\x1b" not in text
    settings = ssmith.config.load_recipe(f"{out}/run.toml").train
    assert (settings.steps, settings.optim.lr, settings.optim.warmup_steps, settings.seed) == (4, 0.01, 2, 3)


def test_epochs_take_the_place_of_the_recipes_steps(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "t.txt"
    data.write_text("Some words of mine. " * 40)
    out = str(tmp_path / "run")
    assert main(["train", recipe, "--data", str(data), "--out", out, "--epochs", "2"]) == 0
    assert "= 2.00 epochs" in capsys.readouterr().out


def test_train_reads_standard_input(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(("Grüße an alle. " * 60).encode()), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", stream)
    assert main(["train", recipe, "--data", "-", "--out", str(tmp_path / "run")]) == 0
    assert "1 documents" in capsys.readouterr().out


BAD_INPUT = {
    "missing": (None, "no such"),
    "empty": (b"", "empty"),
    "blank": (b" \n ", "empty"),
    "binary": (b"abc\x00def", "NUL"),
    "not UTF-8": (b"caf\xe9 au lait", "UTF-8"),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_text_is_one_message_and_leaves_nothing(
    case: str, recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, needle = BAD_INPUT[case]
    path = tmp_path / "bad.txt"
    if content is not None:
        path.write_bytes(content)
    out = tmp_path / "run"
    assert main(["train", recipe, "--data", str(path), "--out", str(out)]) == 1
    error = message(capsys)
    assert error.startswith("ssmith train: ")
    assert "bad.txt" in error
    assert needle.lower() in error.lower()
    assert not out.exists()


def test_an_unknown_recipe_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tinny"]) == 1
    assert message(capsys) == "ssmith train: there is no recipe 'tinny'; did you mean 'tiny'?"


def test_an_unknown_setting_in_a_recipe_names_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.toml"
    path.write_text(TINY + "batch_sise = 3\n")
    assert main(["train", str(path)]) == 1
    assert "unknown setting 'train.batch_sise'; did you mean 'batch_size'?" in message(capsys)


@pytest.mark.parametrize("verb", ["generate", "evaluate"])
def test_a_folder_that_is_no_model_is_one_message(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, str(tmp_path / "nothing")]) == 1
    assert "nothing" in message(capsys)
    assert main([verb, str(tmp_path)]) == 1
    assert "config.json" in message(capsys)


def test_traceback_on_demand(tmp_path: Path) -> None:
    with pytest.raises((ValueError, OSError)):
        main(["generate", str(tmp_path / "nothing"), "--traceback"])


def test_generate_writes_prompt_and_passage(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    sampling = ["--temp", "0.9", "--top-k", "20", "--seed", "7", "--max-new-tokens", "12"]
    assert main(["generate", folder, "-p", "It was", *sampling]) == 0
    first = capsys.readouterr().out
    assert first.startswith("It was")
    assert len(first) > len("It was\n")
    assert main(["generate", folder, "-p", "It was", *sampling]) == 0
    assert capsys.readouterr().out == first
    model = ssmith.load(folder)
    assert first == "It was" + model.generate("It was", 12, 0.9, top_k=20, seed=7) + "\n"


def test_generate_reads_standard_input(
    folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("From a pipe"))
    assert main(["generate", folder, "-p", "-", "-m", "3"]) == 0
    assert capsys.readouterr().out.startswith("From a pipe")


def test_evaluate_prints_figures_and_json(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.txt"
    path.write_text("A few words.")
    assert main(["evaluate", folder, "--data", str(path)]) == 0
    assert "bits per byte" in capsys.readouterr().out
    assert main(["evaluate", folder, "--data", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tokens"] == report["bytes"] == 12
    assert report["loss"] == ssmith.evaluate(ssmith.load(folder), path).loss


def test_verify_prints_a_table_and_fails_with_1(
    recipe: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", recipe]) == 0
    text = capsys.readouterr().out
    assert "layers.0.mixer.A_log" in text
    assert text.splitlines()[-1].startswith("all ")
    made = HybridLM.__init__

    def sabotaged(self: HybridLM, config: ssmith.ModelConfig) -> None:
        made(self, config)
        self.layers[0].mixer.D.register_hook(lambda gradient: gradient * (1 + 1e-4))

    monkeypatch.setattr(HybridLM, "__init__", sabotaged)
    assert main(["verify", recipe]) == 1
    assert "FAILED (gradient layers.0.mixer.D" in capsys.readouterr().out


def test_verify_takes_a_folder(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = {n: p.clone() for n, p in ssmith.load(folder).state_dict().items()}
    assert main(["verify", folder]) == 0
    assert "rows hold" in capsys.readouterr().out
    after = ssmith.load(folder).state_dict()
    assert all(torch.equal(before[n], after[n]) for n in before)


def test_the_recipes_folder_is_taken_unless_a_flag_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.toml").write_text(TINY + 'out = "named"\n')
    assert main(["train", "r.toml", "--steps", "1"]) == 0
    assert main(["train", "r.toml", "--steps", "1", "--out", "other"]) == 0
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["named", "other"]


def test_a_run_that_failed_does_not_block_the_next(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "run")
    assert main(["train", recipe, "--out", out, "--lr", "1e30", "--warmup-steps", "0"]) == 1
    assert "lower --lr" in capsys.readouterr().err
    assert main(["train", recipe, "--out", out]) == 0
    assert main(["train", recipe, "--out", out]) == 1  # now a model is in it


def test_a_reader_that_leaves_early_is_no_error(folder: str) -> None:
    program = [sys.executable, "-m", "ssmith.cli.main", "generate", folder, "-m", "4000", "-t", "1"]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read(5)
    process.stdout.close()
    _, error = process.communicate(timeout=120)
    assert error == b""
    assert process.returncode == 141


def test_out_of_memory_is_one_message(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(HybridLM, "forward", fails)
    assert main(["train", recipe, "--out", str(tmp_path / "run")]) == 1
    assert "out of memory: lower --micro-batch-size" in message(capsys)


def test_stop_may_be_given_again(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    model = ssmith.load(folder)
    whole = model.generate("It was", 60, 0.9, seed=7)
    flags = ["-m", "60", "-t", "0.9", "--seed", "7", "--stop", whole[5:7], "--stop", "never there"]
    assert main(["generate", "-p", "It was", *flags, folder]) == 0
    assert capsys.readouterr().out == "It was" + whole[: whole.index(whole[5:7])] + "\n"


@pytest.mark.parametrize("seed", ["-1", str(2**80)])
def test_a_seed_that_no_generator_takes(seed: str, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", folder, "--seed", seed]) == 1
    assert message(capsys) == f"ssmith generate: seed must be a whole number from 0 to 2^63 - 1, got {seed}"
