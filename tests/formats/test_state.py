"""Decode states as files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import ssmith
from ssmith.models import HybridLM


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
    with pytest.raises(ValueError, match="cannot write the state to"):
        ssmith.save_state(model.initial_state(1), tmp_path / "no" / "s")
