"""ssmith: trains and runs state-space language models on the hardware people own.

Names are imported when they are first used, so that `import ssmith` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from ssmith.config import Mamba1Config, ModelConfig, OptimConfig, Recipe, TrainConfig
    from ssmith.eval import evaluate
    from ssmith.formats import from_engine_arrays, load, load_state, save, save_state
    from ssmith.models import HybridLM, LMOutput, LMState, gradients, load_named, shapes
    from ssmith.training import train
    from ssmith.verification import verify

_ROOMS = {
    "ssmith.config": ("Mamba1Config", "ModelConfig", "OptimConfig", "Recipe", "TrainConfig"),
    "ssmith.eval": ("evaluate",),
    "ssmith.formats": ("from_engine_arrays", "load", "load_state", "save", "save_state"),
    "ssmith.models": ("HybridLM", "LMOutput", "LMState", "gradients", "load_named", "shapes"),
    "ssmith.training": ("train",),
    "ssmith.verification": ("verify",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "HybridLM",
    "LMOutput",
    "LMState",
    "Mamba1Config",
    "ModelConfig",
    "OptimConfig",
    "Recipe",
    "TrainConfig",
    "__version__",
    "evaluate",
    "from_engine_arrays",
    "gradients",
    "load",
    "load_named",
    "load_state",
    "save",
    "save_state",
    "shapes",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'ssmith' has no attribute {name!r}")
    return getattr(importlib.import_module(_ROOM_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
