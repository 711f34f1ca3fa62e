"""Settings: frozen dataclasses, TOML, recipes. Imports no torch."""

from ssmith.config.load import from_dict, load_recipe, merge, recipe_names, to_dict, to_toml
from ssmith.config.schema import Mamba1Config, ModelConfig, OptimConfig, Recipe, TrainConfig

__all__ = [
    "Mamba1Config",
    "ModelConfig",
    "OptimConfig",
    "Recipe",
    "TrainConfig",
    "from_dict",
    "load_recipe",
    "merge",
    "recipe_names",
    "to_dict",
    "to_toml",
]
