"""Decode states as files."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import ssmith
from ssmith.formats import files
from ssmith.models import HybridLM, LMState
from ssmith.models.blocks import Mamba1State


@pytest.fixture
def model() -> HybridLM:
    torch.manual_seed(0)
    return HybridLM(ssmith.ModelConfig(vocab_size=11, hidden_size=8, repeats=2))


def test_reading_goes_on_from_a_file(model: HybridLM, tmp_path: Path) -> None:
    ids = torch.randint(0, 11, (3, 13))
    first = model(ids[:, :6])
    ssmith.save_state(first.state, tmp_path / "s")
    state = ssmith.load_state(tmp_path / "s")
    for a, b in zip(state.layers, first.state.layers, strict=True):
        assert type(a) is type(b)
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert torch.equal(model(ids[:, 6:], state=state).logits, model(ids[:, 6:], state=first.state).logits)


def test_faults_are_named(model: HybridLM, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with pytest.raises(FileNotFoundError, match="there is no state file"):
        ssmith.load_state(path)
    save_file({"x": torch.ones(1)}, path)
    with pytest.raises(ValueError, match="is no state file of ssmith"):
        ssmith.load_state(path)
    ssmith.save_state(model.initial_state(1), path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match="is broken"):
        ssmith.load_state(path)
    metadata = {"format": "ssmith-state-1", "layers": '["mamba9"]'}
    save_file({"0.conv": torch.ones(1)}, path, metadata)
    with pytest.raises(ValueError, match="'mamba9', which this version does not know"):
        ssmith.load_state(path)
    save_file({"0.conv": torch.ones(1)}, path, metadata | {"layers": '["mamba1"]'})
    with pytest.raises(ValueError, match=r"tensors \['0.ssm'\] are missing or too many"):
        ssmith.load_state(path)
    for layers in (None, "{", "[]", "[[1]]", "3"):
        named = {"format": "ssmith-state-1"} | ({} if layers is None else {"layers": layers})
        save_file({"0.conv": torch.ones(1)}, path, named)
        with pytest.raises(ValueError, match="does not say of which layers it is"):
            ssmith.load_state(path)
    save_file(
        {"0.conv": torch.ones(1, 2), "0.ssm": torch.ones(2, 2)}, path, metadata | {"layers": '["mamba1"]'}
    )
    with pytest.raises(ValueError, match="not of the same number of sequences"):
        ssmith.load_state(path)
    with pytest.raises(ValueError, match="cannot write the state to"):
        ssmith.save_state(model.initial_state(1), tmp_path / "no" / "s")


def test_a_layer_without_a_form_in_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="layer 0 of the state is a tuple, which has no form in files"):
        ssmith.save_state(LMState(((torch.ones(1),),)), tmp_path / "s")


def test_special_numbers_dtypes_and_shared_memory_are_kept(tmp_path: Path) -> None:
    bits = torch.tensor([[[float("nan"), -0.0, float("inf")]]], dtype=torch.float64)
    ssmith.save_state(LMState((Mamba1State(bits, bits),)), tmp_path / "s")
    for tensor in ssmith.load_state(tmp_path / "s").layers[0]:
        assert tensor.dtype == torch.float64
        assert torch.equal(tensor.view(torch.int64), bits.view(torch.int64))


def test_a_failed_write_leaves_the_old_state(model: HybridLM, tmp_path: Path, monkeypatch) -> None:
    ssmith.save_state(model.initial_state(1), tmp_path / "s")
    before = (tmp_path / "s").read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ValueError, match=r"cannot write the state to .*No space left on device"):
        ssmith.save_state(model.initial_state(2), tmp_path / "s")
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
    assert (tmp_path / "s").read_bytes() == before
