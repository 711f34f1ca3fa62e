"""Saving over an older model: the old one or the new one, never some of each."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from pathlib import Path

import pytest
import torch

import ssmith
from ssmith.data import byte_tokenizer
from ssmith.formats import files
from ssmith.formats.hf import folder as hf_folder
from ssmith.models import HybridLM

MAMBA = ssmith.ModelConfig(vocab_size=257, hidden_size=16, repeats=2)


def made(config: ssmith.ModelConfig) -> HybridLM:
    torch.manual_seed(0)
    model = HybridLM(config)
    if config.vocab_size == 257:
        model.tokenizer = byte_tokenizer()
    return model


def test_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old model stays whole, and nothing half-written is left."""
    model = made(MAMBA)
    ssmith.save(model, tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with torch.no_grad():
        model.embedding.weight.add_(1)
    with pytest.raises(ValueError, match=r"cannot write the model to .*: No space left on device"):
        ssmith.save(model, tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_file_in_the_folders_place(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(ValueError, match="cannot write the model to"):
        ssmith.save(made(MAMBA), tmp_path / "x")


def test_disk_full_at_a_later_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of two models of the same shapes must never mix."""
    monkeypatch.setattr(hf_folder, "SHARD_BYTES", 20_000)
    model = made(MAMBA)
    ssmith.save(model, tmp_path)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    calls = []

    def full_later(path: Path, tensors: dict, metadata: dict) -> None:
        calls.append(path)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        files.write_tensors(path, tensors, metadata)

    monkeypatch.setattr(hf_folder, "write_tensors", full_later)
    with torch.no_grad():
        model.embedding.weight.add_(1)
    with pytest.raises(ValueError, match=r"No space left on device"):
        ssmith.save(model, tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("crash", range(1, 8))
@pytest.mark.parametrize("old, new", [(10**9, 20_000), (20_000, 10**9), (20_000, 20_000)])
def test_killed_between_renames(old: int, new: int, crash: int, tmp_path: Path, monkeypatch) -> None:
    """The old model, the new one, or an error: never weights of both."""
    first, second = made(MAMBA), made(MAMBA)
    with torch.no_grad():
        for p in second.parameters():
            p.add_(1)
    monkeypatch.setattr(hf_folder, "SHARD_BYTES", old)
    ssmith.save(first, tmp_path)
    monkeypatch.setattr(hf_folder, "SHARD_BYTES", new)
    monkeypatch.setattr(hf_folder, "os", _Killed(crash))
    with contextlib.suppress(KeyboardInterrupt):
        ssmith.save(second, tmp_path)
    names = {p.name for p in tmp_path.iterdir()}
    if not names & {"model.safetensors", "model.safetensors.index.json"}:
        assert old == new  # shards over shards have no moment at which one model becomes the other
        with pytest.raises(FileNotFoundError, match=r"has no model\.safetensors"):
            ssmith.load(tmp_path)
        return
    back = list(ssmith.load(tmp_path).parameters())
    assert sum(all(map(torch.equal, back, m.parameters())) for m in (first, second)) == 1


class _Killed:
    """`os`, until the given rename."""

    def __init__(self, crash: int) -> None:
        self.left = crash

    def replace(self, source: Path, target: Path) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        os.replace(source, target)


def test_files_can_be_read_by_whom_the_umask_lets(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    ssmith.save(made(MAMBA), tmp_path)
    modes = {p.name: p.stat().st_mode for p in tmp_path.iterdir()}
    assert set(modes.values()) == {modes["plain"]}


def test_only_our_own_old_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / "model_ema.safetensors").write_text("mine")
    ssmith.save(made(MAMBA), tmp_path)
    assert (tmp_path / "model_ema.safetensors").read_text() == "mine"


def test_a_loaded_model_does_not_follow_its_file(tmp_path: Path) -> None:
    ssmith.save(made(MAMBA), tmp_path)
    model = ssmith.load(tmp_path)
    before = [p.detach().clone() for p in model.parameters()]
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.seek(-4000, os.SEEK_END)
        file.write(b"\0" * 4000)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


def test_loading_draws_no_random_numbers(tmp_path: Path) -> None:
    ssmith.save(made(MAMBA), tmp_path)
    state = torch.get_rng_state()
    ssmith.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_tokenizer_of_more_ids_is_not_saved(tmp_path: Path) -> None:
    model = made(dataclasses.replace(MAMBA, vocab_size=200))
    model.tokenizer = byte_tokenizer()
    with pytest.raises(ValueError, match="the tokenizer has 257 ids, the model a vocabulary of 200"):
        ssmith.save(model, tmp_path)
    assert list(tmp_path.iterdir()) == []
