"""`ssmith train [RECIPE] --data PATH`: a model from scratch on text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tyro.conf import Positional

from ssmith.cli.flags import flag, parse_flags
from ssmith.config.load import from_dict, merge, read_recipe_values
from ssmith.config.schema import Recipe

DESCRIPTION = """Trains a model from scratch on text.

Without arguments: recipe `tiny` on the corpus that ships, under four minutes on two cores."""


@dataclass
class TrainFlags:
    recipe: Annotated[Positional[str], flag("RECIPE", "a recipe's name or a TOML file (default: tiny)")] = (
        "tiny"
    )
    data: Annotated[str | None, flag("PATH", "text file, folder, .jsonl, or - for standard input")] = None
    out: Annotated[
        str | None, flag("DIR", "folder for the model and its records (default: the recipe's, or out)")
    ] = None
    steps: Annotated[int | None, flag("N", "optimizer steps")] = None
    epochs: Annotated[float | None, flag("X", "passes over the data, instead of steps")] = None
    batch_size: Annotated[int | None, flag("N", "rows in one optimizer step")] = None
    micro_batch_size: Annotated[
        int | None, flag("N", "rows in one forward pass; the rest is accumulated")
    ] = None
    max_seq_len: Annotated[int | None, flag("N", "tokens in one row")] = None
    lr: Annotated[float | None, flag("X", "peak learning rate", "--optim.lr")] = None
    warmup_steps: Annotated[int | None, flag("N", "steps of linear warm-up", "--optim.warmup-steps")] = None
    weight_decay: Annotated[float | None, flag("X", "AdamW's, on matrices only", "--optim.weight-decay")] = (
        None
    )
    clip_norm: Annotated[float | None, flag("X", "largest gradient norm; 0: any", "--optim.clip-norm")] = None
    eval_every: Annotated[int | None, flag("N", "steps between validations; 0: only at the end")] = None
    log_every: Annotated[int | None, flag("N", "steps between printed lines")] = None
    seed: Annotated[int | None, flag("N", "seed of weights and of the data's order")] = None
    dtype: Annotated[str | None, flag("NAME", "what the products compute in: float32")] = None
    backend: Annotated[str | None, flag("NAME", "operators: auto, cpu or reference")] = None
    activation_checkpointing: Annotated[str | None, flag("KIND", "none, or full to save memory")] = None


OPTIM_FLAGS = ("lr", "warmup_steps", "weight_decay", "clip_norm")


def run(arguments: Sequence[str]) -> int:
    flags = parse_flags(TrainFlags, "train", DESCRIPTION, arguments)
    values = merge(_recipe_values(flags), _changes(flags))
    values["train"].setdefault("out", "out")
    recipe = from_dict(Recipe, values)
    from ssmith.cli.console import ConsoleReporter  # torch is slow to import: wrong settings answer at once
    from ssmith.training import train

    reporter = ConsoleReporter()
    try:
        train(recipe.model, recipe.data, recipe.train, reporter=reporter)
    finally:
        reporter.stop()
    return 0


def _recipe_values(flags: TrainFlags) -> dict[str, Any]:
    """The recipe's values, without its length where a flag gives another kind of length."""
    values = read_recipe_values(flags.recipe)
    if flags.steps is not None or flags.epochs is not None:
        values["train"] = {k: v for k, v in values.get("train", {}).items() if k not in ("steps", "epochs")}
    return values


def _changes(flags: TrainFlags) -> dict[str, Any]:
    given = {k: v for k, v in vars(flags).items() if v is not None and k not in ("recipe", "data")}
    optim = {k: given.pop(k) for k in OPTIM_FLAGS if k in given}
    changes: dict[str, Any] = {"train": given | ({"optim": optim} if optim else {})}
    return changes | ({"data": flags.data} if flags.data is not None else {})
