"""Model folders: config.json, model.safetensors (in shards when large), tokenizer, generation_config.json."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ssmith import __version__
from ssmith.config.schema import nearest
from ssmith.formats.files import read_json, read_tensors, staging, write_json, write_tensors
from ssmith.formats.hf.families import mamba, own
from ssmith.models import HybridLM
from ssmith.ops.dispatch import name_dtype

# The first that can write a model does: what transformers knows is written as transformers knows it.
FAMILIES: dict[str, ModuleType] = {"mamba": mamba, "ssmith": own}
SHARD_BYTES = 5 * 10**9
WEIGHTS, INDEX, CONFIG = "model.safetensors", "model.safetensors.index.json", "config.json"
_SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
FILE_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
DTYPES = {"float32": torch.float32, "float64": torch.float64}

# What transformers writes into every config.json and no forward pass of these models reads.
_GENERIC = {
    "architectures", "model_type", "dtype", "torch_dtype", "transformers_version", "_name_or_path",
    "return_dict", "output_hidden_states", "output_attentions", "chunk_size_feed_forward", "id2label",
    "label2id", "is_encoder_decoder", "problem_type", "ssmith_version",
}  # fmt: skip


def save(model: HybridLM, folder: str | Path) -> None:
    """Writes a model as a Hugging Face folder; an older model in it stays whole when anything fails.

    A model that transformers has an architecture for (Mamba-1 blocks with the settings MambaConfig has) is
    written as that one, so that plain transformers loads it; others get model_type `ssmith`.

    Other files in the folder are left alone.

    Raises:
        ValueError: the folder cannot be written, or the tokenizer has more ids than the model.
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
    _check_vocabulary(model, folder)
    weights = {name: p.detach().cpu() for name, p in model.named_parameters()}
    values = {
        "architectures": [family.ARCHITECTURE],
        "model_type": model_type,
        "dtype": name_dtype(model.embedding.weight.dtype),
        "ssmith_version": __version__,
    }
    # Without a tokenizer they are null: left out, transformers would take id 0 for the end of text.
    end = None if model.tokenizer is None else model.tokenizer.eos_token_id
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    with staging(folder) as stage:
        names = _write_weights(family.weights_out(weights, model.config), stage)
        if model.tokenizer is not None:
            model.tokenizer.save(stage)
        write_json(stage / "generation_config.json", {"_from_model_config": True, **ends})
        write_json(stage / CONFIG, values | family.settings_out(model.config) | ends)
        _put_in_place(stage, folder, names)


def _put_in_place(stage: Path, folder: Path, weights: list[str]) -> None:
    """Renames what was written into the folder; nothing is left that can run out of disk.

    Weights come first and config.json last, so that a new folder with a config.json is a whole one. An old
    folder changes its weights at one moment: when model.safetensors is renamed, which hides an index, or when
    it is removed, which uncovers one. Shards over shards have no such moment, so the old index goes first:
    between, the folder has no weights, rather than some of each model.
    """
    if INDEX in weights and not (folder / WEIGHTS).is_file():
        (folder / INDEX).unlink(missing_ok=True)
    for name in weights:
        os.replace(stage / name, folder / name)
    for path in folder.iterdir():
        if path.name not in weights and (path.name in (WEIGHTS, INDEX) or _SHARD.fullmatch(path.name)):
            path.unlink()
    for path in sorted(stage.iterdir(), key=lambda path: path.name == CONFIG):
        os.replace(path, folder / path.name)


def _write_weights(weights: dict[str, Tensor], folder: Path) -> list[str]:
    """One file, or shards and an index; their names, the index last."""
    shards = list(_shards(weights))
    if len(shards) == 1:
        names = [WEIGHTS]
    else:
        names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        whole = {key: tensor.contiguous() for key, tensor in shard.items()}
        write_tensors(folder / name, whole, {"format": "pt"})
    if len(shards) == 1:
        return names
    size = sum(w.nbytes for w in weights.values())
    where = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": where})
    return [*names, INDEX]


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
            another shape (by the file's name for it), a broken file, a tokenizer or device that does not fit.
    """
    folder = Path(folder)
    wanted, device = _dtype(dtype), _device(device)
    if adapter is not None:
        raise ValueError("adapters are not in this version: load without `adapter`")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no model folder {folder}")
    if not (folder / CONFIG).is_file():
        raise FileNotFoundError(f"{folder} has no {CONFIG}: it is not a model folder")
    values = read_json(folder / CONFIG)
    family = _family(values, folder)
    try:
        config = family.settings_in({k: v for k, v in values.items() if k not in _GENERIC})
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG}: {error}") from error
    weights = {family.ALIASES.get(name, name): w for name, w in _read_weights(folder).items()}
    tensors, layers = len(weights), len(config.blocks) * config.repeats
    if layers > tensors:  # said before layers are made that nothing will fill
        raise ValueError(f"{folder}: {CONFIG} names {layers} layers, the weights are only {tensors} tensors")
    with torch.device("meta"):
        model = HybridLM(config)
    _check_weights(weights, family.weights_out(dict(model.named_parameters()), config), family, folder)
    # Copies: what was read is a map of the file.
    owned = {
        name: w.to(device=device, dtype=wanted, copy=True).contiguous()
        for name, w in family.weights_in(weights, config).items()
    }
    model.load_state_dict(owned, assign=True)
    if (folder / "tokenizer.json").is_file():
        from ssmith.data.tokenizer import Tokenizer  # only who has one waits for the tokenizers library

        model.tokenizer = Tokenizer.load(folder)
        _check_vocabulary(model, folder)
    return model.eval()


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    name = "float32" if dtype is None else str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not handled; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # an unknown name; a torch built without it
        raise ValueError(f"device {device!r} cannot be used here: {str(error).splitlines()[0]}") from error


def _family(values: Mapping[str, Any], folder: Path) -> ModuleType:
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise ValueError(f"{folder}: unknown model_type {model_type!r}{nearest(str(model_type), FAMILIES)}")
    return FAMILIES[model_type]


def _check_vocabulary(model: HybridLM, folder: Path) -> None:
    if model.tokenizer is not None and model.tokenizer.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"{folder}: the tokenizer has {model.tokenizer.vocab_size} ids, the model a vocabulary of "
            f"{model.config.vocab_size}: the tokenizer is another model's"
        )


def _read_weights(folder: Path) -> dict[str, Tensor]:
    """Where there are both a single file and an index, the file counts, as in transformers."""
    if (folder / WEIGHTS).is_file():
        return read_tensors(folder / WEIGHTS)[0]
    if (folder / INDEX).is_file():
        return _read_shards(folder)
    if any(folder.glob("*.bin")):
        raise FileNotFoundError(
            f"{folder} has weights as .bin only: pickle is never read; convert them to {WEIGHTS} first"
        )
    raise FileNotFoundError(f"{folder} has no {WEIGHTS}")


def _read_shards(folder: Path) -> dict[str, Tensor]:
    where = read_json(folder / INDEX).get("weight_map")
    if not isinstance(where, dict) or not all(isinstance(file, str) for file in where.values()):
        raise ValueError(f"{folder / INDEX} has no weight_map of tensor names and file names")
    weights: dict[str, Tensor] = {}
    for file in sorted(set(where.values())):
        if Path(file).name != file:
            raise ValueError(f"{folder / INDEX} names {file!r}, which is not a file of this folder")
        if not (folder / file).is_file():
            raise FileNotFoundError(f"{folder} lacks {file}, which {INDEX} names")
        shard = read_tensors(folder / file)[0]
        for name in shard.keys() ^ {name for name, its_file in where.items() if its_file == file}:
            raise ValueError(f"{folder}: {INDEX} and {file} do not agree about tensor {name!r}")
        weights |= shard
    return weights


def _check_weights(
    weights: dict[str, Tensor], expected: Mapping[str, Tensor], family: ModuleType, folder: Path
) -> None:
    """Every expected tensor must be there, and no other, by the names of the file; a tied head may repeat."""
    head, tied = family.TIED
    if head not in expected and head in weights:
        # a tied file may hold both names, or only either
        if not torch.equal(weights[head], weights.setdefault(tied, weights[head])):
            raise ValueError(f"{folder}: the head is tied to {tied!r}, but {head!r} in the file differs")
        del weights[head]
    for name, tensor in expected.items():
        if name not in weights:
            raise ValueError(f"{folder}: tensor {name!r} of shape {tuple(tensor.shape)} is missing")
    for name, tensor in weights.items():
        if name not in expected:
            raise ValueError(f"{folder}: unknown tensor {name!r} of shape {tuple(tensor.shape)}")
        if tensor.shape != expected[name].shape:
            raise ValueError(
                f"{folder}: tensor {name!r} has shape {tuple(tensor.shape)}, "
                f"expected {tuple(expected[name].shape)}"
            )
        if tensor.dtype not in FILE_DTYPES:
            known = ", ".join(name_dtype(dtype) for dtype in FILE_DTYPES)
            raise ValueError(
                f"{folder}: tensor {name!r} is {name_dtype(tensor.dtype)}; what can be read is {known}"
            )
