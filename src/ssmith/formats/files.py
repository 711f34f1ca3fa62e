"""Files that are written whole or not at all, and read with one clear message when they are broken."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Lets `write` fill a temporary file beside `path`, makes it durable and renames it into place.

    When anything fails, `path` is as it was and the temporary file is gone.
    """
    # the process's number: two that write the same path at once must not share the temporary file
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        write(partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A temporary folder inside `folder`, on the same disk, so that renaming out of it is atomic."""
    stage = Path(tempfile.mkdtemp(prefix=".partial-", dir=folder))
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file, written whole; OSError when the disk does not take it."""

    def write(partial: Path) -> None:
        partial.touch()
        mode = partial.stat().st_mode & 0o777
        try:
            save_file(tensors, partial, metadata)
            partial.chmod(mode)  # safetensors makes files that only their owner may read
        except SafetensorError as error:  # its word for a disk that is full, too
            raise OSError(str(error)) from error

    write_whole(path, write)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """One JSON object, indented, written whole."""
    text = json.dumps(values, indent=2) + "\n"
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; ValueError with its name when there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(values).__name__}")
    return values


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file; ValueError when it is cut short or no such file.

    The tensors are maps of the file: whoever keeps them copies them, or a later change of the file would
    change them.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is broken (cut short, or not safetensors): {error}") from error
