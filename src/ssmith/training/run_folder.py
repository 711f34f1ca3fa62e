"""The folder of a run: refused when something is in it, given the settings first and the model last."""

from __future__ import annotations

from pathlib import Path

from ssmith.config import ModelConfig, Recipe, TrainConfig, to_toml
from ssmith.formats import save
from ssmith.formats.files import write_whole
from ssmith.models import HybridLM

MODEL_CARD = """\
# A language model trained with ssmith

{parameters:,} parameters, {layers} layers, hidden size {hidden_size}, vocabulary {vocab_size}.

- `run.toml`: every setting of the run; `metrics.jsonl`: one row a step.
- Write with it: `ssmith generate . -p "..."`, or in Python `ssmith.load(".").generate("...")`.
"""


def prepare_folder(config: TrainConfig, model: ModelConfig, data: object) -> Path | None:
    """Makes the run's folder and writes run.toml; None when the settings name none.

    Raises:
        ValueError: the folder is not empty, or a file stands in its place.
    """
    if config.out is None:
        return None
    out = Path(config.out)
    if out.exists() and not out.is_dir():
        raise ValueError(f"the output folder {out} is a file: give another --out")
    if out.is_dir() and any(out.iterdir()):
        raise ValueError(f"the output folder {out} is not empty: give another --out, or remove it")
    try:
        out.mkdir(parents=True, exist_ok=True)
        recipe = Recipe(model=model, train=config, data=str(data) if isinstance(data, str | Path) else None)
        _write_text(out / "run.toml", to_toml(recipe))
    except OSError as error:
        raise ValueError(f"cannot write to the output folder {out}: {error.strerror or error}") from error
    return out


def discard(out: Path) -> None:
    """Takes away what a run has written that ended without a model, so that it can be started again."""
    for name in ("run.toml", "metrics.jsonl"):
        (out / name).unlink(missing_ok=True)
    if not any(out.iterdir()):
        out.rmdir()


def save_run(model: HybridLM, out: Path) -> None:
    """Writes the trained model and a page about it."""
    save(model, out)
    config = model.config
    card = MODEL_CARD.format(
        parameters=sum(p.numel() for p in model.parameters()),
        layers=len(config.layers),
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
    )
    _write_text(out / "README.md", card)


def _write_text(path: Path, text: str) -> None:
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))
