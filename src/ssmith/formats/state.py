"""Decode states as files: one safetensors file, bits kept."""

from __future__ import annotations

import json
from pathlib import Path

from ssmith.formats.files import read_tensors, write_tensors
from ssmith.models import LMState
from ssmith.models.blocks import Mamba1State

STATES = {"mamba1": Mamba1State}
_KIND = {state: name for name, state in STATES.items()}
FORMAT = "ssmith-state-1"


def save_state(state: LMState, path: str | Path) -> None:
    """Writes a state, whole or not at all: tensors `{layer}.{field}`, the layers' kinds in the metadata."""
    path = Path(path)
    kinds = [_KIND[type(layer)] for layer in state.layers]
    tensors = {
        f"{i}.{field}": tensor.detach().cpu().contiguous()
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
    kinds = json.loads(metadata["layers"])
    unknown = [kind for kind in kinds if kind not in STATES]
    if unknown:
        raise ValueError(f"{path} holds a state of {unknown[0]!r}, which this version does not know")
    names = {f"{i}.{field}" for i, kind in enumerate(kinds) for field in STATES[kind]._fields}
    if names != tensors.keys():
        raise ValueError(f"{path}: tensors {sorted(names ^ tensors.keys())} are missing or too many")
    layers = (
        STATES[kind](*(tensors[f"{i}.{field}"] for field in STATES[kind]._fields))
        for i, kind in enumerate(kinds)
    )
    return LMState(tuple(layers))
