"""Model folders: config.json, model.safetensors (in shards when large), tokenizer, generation_config.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ssmith import __version__
from ssmith.config.schema import nearest
from ssmith.data import Tokenizer
from ssmith.formats.files import read_json, read_tensors, write_json, write_tensors
from ssmith.formats.hf.families import mamba, own
from ssmith.models import HybridLM

# The first that can write a model does: what transformers knows is written as transformers knows it.
FAMILIES: dict[str, ModuleType] = {"mamba": mamba, "ssmith": own}
SHARD_BYTES = 5 * 10**9
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"float32": torch.float32, "float64": torch.float64}

# What transformers writes into every config.json and no forward pass of these models reads.
_GENERIC = {
    "architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "_name_or_path",
    "return_dict", "output_hidden_states", "output_attentions", "chunk_size_feed_forward", "id2label",
    "label2id", "is_encoder_decoder", "problem_type", "ssmith_version",
}  # fmt: skip


def save(model: HybridLM, folder: str | Path) -> None:
    """Writes a model as a Hugging Face folder; each file whole or not at all.

    A model that transformers has an architecture for (Mamba-1 blocks with the settings MambaConfig has) is
    written as that one, so that plain transformers loads it; others get model_type `ssmith`.

    Raises:
        ValueError: the folder cannot be written.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(model, folder)
    except OSError as error:
        raise ValueError(f"cannot write the model to {folder}: {error.strerror or error}") from error


def _write(model: HybridLM, folder: Path) -> None:
    model_type = next(name for name, family in FAMILIES.items() if family.can_write(model.config))
    family = FAMILIES[model_type]
    weights = {name: p.detach().cpu() for name, p in model.named_parameters()}
    # Weights first and config.json last: a folder with a config.json is a whole one.
    _write_weights(family.weights_out(weights, model.config), folder)
    ends = {}
    if model.tokenizer is not None:
        model.tokenizer.save(folder)
        if model.tokenizer.eos_token_id is not None:
            ends = dict.fromkeys(("bos_token_id", "eos_token_id"), model.tokenizer.eos_token_id)
    write_json(folder / "generation_config.json", {"_from_model_config": True, **ends})
    values = {
        "architectures": [family.ARCHITECTURE],
        "model_type": model_type,
        "dtype": str(model.embedding.weight.dtype).removeprefix("torch."),
        "ssmith_version": __version__,
    }
    write_json(folder / "config.json", values | family.settings_out(model.config) | ends)


def _write_weights(weights: dict[str, Tensor], folder: Path) -> None:
    """One file, or shards and an index; files of the other kind from an earlier model are removed after."""
    shards = list(_shards(weights))
    old = set(folder.glob("model*.safetensors*"))
    if len(shards) == 1:
        names = [WEIGHTS]
    else:
        names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        whole = {key: tensor.contiguous() for key, tensor in shard.items()}
        write_tensors(folder / name, whole, {"format": "pt"})
    if len(shards) > 1:
        size = sum(w.nbytes for w in weights.values())
        where = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": where})
        names.append(INDEX)
    for path in old - {folder / name for name in names}:
        path.unlink()


def _shards(weights: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if shard and sum(w.nbytes for w in shard.values()) + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard = {}
        shard[name] = tensor
    yield shard


def load(
    folder: str | Path, device: str | torch.device = "cpu", dtype: str | torch.dtype | None = None,
    adapter: str | Path | None = None,
) -> HybridLM:  # fmt: skip
    """A model from a Hugging Face folder, ready to write and to train further.

    Args:
        folder: a folder with config.json and safetensors files; model_type `mamba` or `ssmith`.
        device: where to.
        dtype: of the weights, `float32` (the default; narrower files are widened) or `float64`.
        adapter: not in this version.

    Returns:
        The model in evaluation mode; `model.tokenizer` is set when the folder has a tokenizer.json.

    Raises:
        FileNotFoundError: no such folder, no config.json or no weights in it.
        ValueError: a model_type or setting that is not handled, a tensor that is missing, unknown or of
            another shape (named), a broken file.
    """
    folder = Path(folder)
    wanted = _dtype(dtype)
    if adapter is not None:
        raise ValueError("adapters are not in this version: load without `adapter`")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no model folder {folder}")
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json: it is not a model folder")
    values = read_json(folder / "config.json")
    family = _family(values, folder)
    try:
        config = family.settings_in({k: v for k, v in values.items() if k not in _GENERIC})
    except ValueError as error:
        raise ValueError(f"{folder / 'config.json'}: {error}") from error
    weights = family.weights_in(_read_weights(folder), config)
    with torch.device("meta"):
        model = HybridLM(config)
    _assign(model, weights, wanted, folder)
    if (folder / "tokenizer.json").is_file():
        model.tokenizer = Tokenizer.load(folder)
    return model.to(device).eval()


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not handled; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _family(values: Mapping[str, Any], folder: Path) -> ModuleType:
    model_type = values.get("model_type")
    if model_type not in FAMILIES:
        raise ValueError(f"{folder}: unknown model_type {model_type!r}{nearest(str(model_type), FAMILIES)}")
    return FAMILIES[model_type]


def _read_weights(folder: Path) -> dict[str, Tensor]:
    if (folder / INDEX).is_file():
        weights: dict[str, Tensor] = {}
        for name in sorted(set(read_json(folder / INDEX).get("weight_map", {}).values())):
            if not (folder / name).is_file():
                raise FileNotFoundError(f"{folder} lacks {name}, which {INDEX} names")
            weights |= read_tensors(folder / name)[0]
        return weights
    if (folder / WEIGHTS).is_file():
        return read_tensors(folder / WEIGHTS)[0]
    if any(folder.glob("*.bin")):
        raise FileNotFoundError(
            f"{folder} has weights as .bin only: pickle is never read; convert them to {WEIGHTS} first"
        )
    raise FileNotFoundError(f"{folder} has no {WEIGHTS}")


def _assign(model: HybridLM, weights: dict[str, Tensor], dtype: torch.dtype, folder: Path) -> None:
    """Puts the weights into a model that has none yet; every tensor must be there, and no other."""
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    if model.config.tie_embeddings and "head.weight" in weights:
        if not torch.equal(weights["head.weight"], weights["embedding.weight"]):
            raise ValueError(
                f"{folder}: the head is tied to the embedding, but the file's head.weight differs"
            )
        del weights["head.weight"]
    for name, shape in expected.items():
        if name not in weights:
            raise ValueError(f"{folder}: tensor {name!r} of shape {shape} is missing")
    for name, tensor in weights.items():
        if name not in expected:
            raise ValueError(f"{folder}: unknown tensor {name!r} of shape {tuple(tensor.shape)}")
        if tuple(tensor.shape) != expected[name]:
            raise ValueError(
                f"{folder}: tensor {name!r} has shape {tuple(tensor.shape)}, expected {expected[name]}"
            )
        if not tensor.is_floating_point():
            raise ValueError(f"{folder}: tensor {name!r} is {tensor.dtype}, expected floating point")
    owned = {name: tensor.to(dtype).contiguous() for name, tensor in weights.items()}
    model.load_state_dict(owned, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
