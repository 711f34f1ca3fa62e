"""Decode states as files: one safetensors file, bits kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from ssmith.formats.files import read_tensors, write_tensors
from ssmith.models import LMState
from ssmith.models.blocks import Mamba1State

STATES = {"mamba1": Mamba1State}
_KIND = {state: name for name, state in STATES.items()}
FORMAT = "ssmith-state-1"


def save_state(state: LMState, path: str | Path) -> None:
    """Writes a state, whole or not at all: tensors `{layer}.{field}`, the layers' kinds in the metadata.

    Raises:
        ValueError: the state holds something else than decode states, or the file cannot be written.
    """
    path = Path(path)
    for i, layer in enumerate(state.layers):
        if type(layer) not in _KIND:
            raise ValueError(
                f"layer {i} of the state is a {type(layer).__name__}, which has no form in files"
            )
    kinds = [_KIND[type(layer)] for layer in state.layers]
    tensors = {
        # a copy: safetensors refuses tensors that share memory
        f"{i}.{field}": tensor.detach().cpu().clone().contiguous()
        for i, layer in enumerate(state.layers)
        for field, tensor in layer._asdict().items()
    }
    metadata = {"format": FORMAT, "layers": json.dumps(kinds)}
    try:
        write_tensors(path, tensors, metadata)
    except OSError as error:
        raise ValueError(f"cannot write the state to {path}: {error.strerror or error}") from error


def load_state(path: str | Path) -> LMState:
    """A state from a file that `save_state` wrote; ValueError when it is broken or something else."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no state file {path}")
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is no state file of ssmith (format {metadata.get('format')!r})")
    kinds = _kinds(metadata, path)
    unknown = [kind for kind in kinds if kind not in STATES]
    if unknown:
        raise ValueError(f"{path} holds a state of {unknown[0]!r}, which this version does not know")
    names = {f"{i}.{field}" for i, kind in enumerate(kinds) for field in STATES[kind]._fields}
    if names != tensors.keys():
        raise ValueError(f"{path}: tensors {sorted(names ^ tensors.keys())} are missing or too many")
    rows = {tensor.shape[:1] for tensor in tensors.values()}
    if len(rows) != 1 or rows == {torch.Size()}:
        raise ValueError(f"{path}: its tensors are not of the same number of sequences")
    layers = (
        STATES[kind](*(tensors[f"{i}.{field}"].clone() for field in STATES[kind]._fields))
        for i, kind in enumerate(kinds)
    )
    return LMState(tuple(layers))


def _kinds(metadata: dict[str, str], path: Path) -> list[str]:
    """The kind of each layer from the file's metadata."""
    try:
        kinds: Any = json.loads(metadata.get("layers", ""))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} does not say of which layers it is: {error}") from error
    if not isinstance(kinds, list) or not kinds or not all(isinstance(kind, str) for kind in kinds):
        raise ValueError(f"{path} does not say of which layers it is: got {kinds!r}")
    return kinds
