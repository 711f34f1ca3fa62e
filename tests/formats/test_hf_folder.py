"""Model folders of our own: round trips to the bit, whole or not at all, one message for each fault."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import ssmith
from ssmith.data import byte_tokenizer
from ssmith.formats.hf import folder as hf_folder
from ssmith.models import HybridLM

MAMBA = ssmith.ModelConfig(vocab_size=257, hidden_size=16, repeats=2)
OTHER = ssmith.ModelConfig(
    vocab_size=19, hidden_size=6, tie_embeddings=False, head_bias=True, final_norm=False, norm_eps=1e-6,
    mamba1=ssmith.Mamba1Config(
        state_size=5, expand=1.5, x_proj_bias=True, dt_b_c_norm="learned", A_log_clamp=(-10, 5),
        discretization="zoh", time_step_rank=3,
    ),
)  # fmt: skip


def made(config: ssmith.ModelConfig) -> HybridLM:
    torch.manual_seed(0)
    model = HybridLM(config)
    if config.vocab_size == 257:
        model.tokenizer = byte_tokenizer()
    return model


@pytest.mark.parametrize("config, model_type", [(MAMBA, "mamba"), (OTHER, "ssmith")])
def test_round_trip_to_the_bit(config: ssmith.ModelConfig, model_type: str, tmp_path: Path) -> None:
    model = made(config)
    ssmith.save(model, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["model_type"] == model_type
    back = ssmith.load(tmp_path)
    assert back.config.layers == config.layers
    assert not back.training
    assert all(p.requires_grad for p in back.parameters())
    assert ssmith.shapes(back) == ssmith.shapes(model)
    for (name, a), b in zip(back.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b), name
    ids = torch.randint(0, config.vocab_size, (2, 9))
    assert torch.equal(back(ids).logits, model(ids).logits)
    assert (back.tokenizer is None) == (config.vocab_size != 257)


def test_a_tied_head_is_in_no_file(tmp_path: Path) -> None:
    ssmith.save(made(MAMBA), tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")


def test_generation_config_names_the_end_of_text(tmp_path: Path) -> None:
    ssmith.save(made(MAMBA), tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == 256


def test_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made(MAMBA)
    ssmith.save(model, tmp_path)
    monkeypatch.setattr(hf_folder, "SHARD_BYTES", 20_000)
    ssmith.save(model, tmp_path)
    shards = sorted(p.name for p in tmp_path.glob("*.safetensors"))
    assert len(shards) > 2
    assert "model.safetensors" not in shards
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert sorted(set(index["weight_map"].values())) == shards
    assert index["metadata"]["total_size"] == sum(p.nbytes for p in model.parameters())
    back = ssmith.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), model.parameters(), strict=True))
    (tmp_path / shards[1]).unlink()
    with pytest.raises(FileNotFoundError, match=f"lacks {shards[1]}"):
        ssmith.load(tmp_path)
    monkeypatch.undo()
    ssmith.save(model, tmp_path)
    assert [p.name for p in tmp_path.glob("model*safetensors*")] == ["model.safetensors"]


def test_dtypes(tmp_path: Path) -> None:
    ssmith.save(made(MAMBA), tmp_path)
    assert {p.dtype for p in ssmith.load(tmp_path, dtype="float64").parameters()} == {torch.float64}
    assert {p.dtype for p in ssmith.load(tmp_path, dtype=torch.float64).parameters()} == {torch.float64}
    weights = load_file(tmp_path / "model.safetensors")
    save_file({n: w.bfloat16() for n, w in weights.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    widened = ssmith.load(tmp_path)
    assert {p.dtype for p in widened.parameters()} == {torch.float32}
    assert torch.equal(widened.embedding.weight, weights["backbone.embeddings.weight"].bfloat16().float())
    with pytest.raises(ValueError, match="dtype 'int8' is not handled; choose one of float32, float64"):
        ssmith.load(tmp_path, dtype="int8")


@pytest.mark.parametrize(
    "index, message",
    [
        ({"weight_map": ["x"]}, "has no weight_map"),
        ({}, "has no weight_map"),
        ({"weight_map": {"x": 3}}, "has no weight_map"),
        ({"weight_map": {"x": "../shard.safetensors"}}, "is not a file of this folder"),
        ({"weight_map": {"x": "shard.safetensors"}}, "do not agree about tensor"),
    ],
)
def test_a_broken_index(index: dict, message: str, tmp_path: Path) -> None:
    ssmith.save(made(MAMBA), tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "shard.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=message):
        ssmith.load(tmp_path)


@pytest.mark.parametrize("device", ["nowhere", "cuda:99"])
def test_a_device_that_is_not_there(device: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"device '{device}' cannot be used here"):
        ssmith.load(tmp_path, device=device)


def edit(path: Path, **changes: object) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (values | changes).items() if v is not None}))


def reweigh(folder: Path, **changes: torch.Tensor | None) -> None:
    weights = load_file(folder / "model.safetensors")
    weights |= {k: v for k, v in changes.items() if v is not None}
    weights = {k: v for k, v in weights.items() if changes.get(k, 0) is not None}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


NORM, CONV = "backbone.norm_f.weight", "backbone.layers.0.mixer.conv1d.weight"


def _resize(folder: Path, vocab_size: int) -> None:
    """A model of another vocabulary whose folder kept the old tokenizer."""
    config = dataclasses.replace(MAMBA, vocab_size=vocab_size)
    ssmith.save(made(config), folder)


FAULTS = {
    "missing folder": (lambda f: f.rename(f.with_name("moved")), "there is no model folder"),
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json: it is not a model folder"),
    "config not JSON": (lambda f: (f / "config.json").write_text("{"), "config.json is not JSON"),
    "config a list": (lambda f: (f / "config.json").write_text("[]"), "must hold a JSON object, got list"),
    "model_type": (
        lambda f: edit(f / "config.json", model_type="mambo"),
        r"unknown model_type 'mambo'; did you mean 'mamba'\?",
    ),
    "no model_type": (lambda f: edit(f / "config.json", model_type=None), "unknown model_type None"),
    "foreign setting": (lambda f: edit(f / "config.json", gated=True), r"the setting 'gated' \(True\)"),
    "intermediate size": (
        lambda f: edit(f / "config.json", intermediate_size=5),
        "intermediate_size 5 is not",
    ),
    "far too many layers": (
        lambda f: edit(f / "config.json", num_hidden_layers=10**9),
        r"config.json names 1000000000 layers, the weights are only \d+ tensors",
    ),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
    "pickle only": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "pickle is never read",
    ),
    "cut short": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-7]),
        r"model\.safetensors is broken",
    ),
    "not safetensors": (lambda f: (f / "model.safetensors").write_bytes(b"abc"), "is broken"),
    "missing tensor": (
        lambda f: reweigh(f, **{NORM: None}),
        r"tensor 'backbone.norm_f.weight' of shape \(16,\) is missing",
    ),
    "unknown tensor": (lambda f: reweigh(f, extra=torch.ones(2)), r"unknown tensor 'extra' of shape \(2,\)"),
    "mis-shaped tensor": (
        lambda f: reweigh(f, **{NORM: torch.ones(3)}),
        r"tensor 'backbone.norm_f.weight' has shape \(3,\), expected \(16,\)",
    ),
    "integer tensor": (
        lambda f: reweigh(f, **{NORM: torch.ones(16, dtype=torch.int64)}),
        "is int64; what can be read is float32, bfloat16, float16, float64",
    ),
    "8-bit tensor": (
        lambda f: reweigh(f, **{NORM: torch.ones(16).to(torch.float8_e4m3fn)}),
        "is float8_e4m3fn; what can be read is",
    ),
    "convolution of another layout": (
        lambda f: reweigh(f, **{CONV: torch.ones(4, 1, 32)}),
        r"mixer.conv1d.weight' has shape \(4, 1, 32\), expected \(32, 1, 4\)",
    ),
    "model_type a list": (lambda f: edit(f / "config.json", model_type=["mamba"]), "unknown model_type"),
    "setting of another type": (
        lambda f: edit(f / "config.json", layer_norm_epsilon="small"),
        "layer_norm_epsilon must be like 1e-05, got 'small'",
    ),
    "setting of another truth": (
        lambda f: edit(f / "config.json", use_bias=0),
        "use_bias must be like False, got 0",
    ),
    "layers a truth": (
        lambda f: edit(f / "config.json", num_hidden_layers=True),
        "must be like 32, got True",
    ),
    "LayerNorm": (lambda f: edit(f / "config.json", rms_norm=False), "rms_norm False is not handled"),
    "other original settings": (
        lambda f: edit(f / "config.json", ssm_cfg={"d_state": 8}),
        "ssm_cfg .* is not handled",
    ),
    "quantized": (lambda f: edit(f / "config.json", quantization_config={}), "setting 'quantization_config'"),
    "another tokenizer": (
        lambda f: _resize(f, 200),
        "the tokenizer has 257 ids, the model a vocabulary of 200",
    ),
    "another head": (
        lambda f: reweigh(f, **{"lm_head.weight": torch.ones(257, 16)}),
        "'lm_head.weight' in the file differs",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_named(fault: str, tmp_path: Path) -> None:
    breaks, message = FAULTS[fault]
    folder = tmp_path / "model"
    ssmith.save(made(MAMBA), folder)
    breaks(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        ssmith.load(folder)


def test_a_redundant_tied_head_is_accepted(tmp_path: Path) -> None:
    model = made(MAMBA)
    ssmith.save(model, tmp_path)
    reweigh(tmp_path, **{"lm_head.weight": model.embedding.weight.detach().clone()})
    assert torch.equal(ssmith.load(tmp_path).embedding.weight, model.embedding.weight)
    reweigh(tmp_path, **{"backbone.embeddings.weight": None})
    assert torch.equal(ssmith.load(tmp_path).embedding.weight, model.embedding.weight)


def test_adapters_are_refused_for_now(tmp_path: Path) -> None:
    ssmith.save(made(MAMBA), tmp_path)
    with pytest.raises(ValueError, match="adapters are not in this version"):
        ssmith.load(tmp_path, adapter="x")
