"""Which way the arrows point (DESIGN.md 1), and how files are named and sized."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ssmith

ROOT = Path(ssmith.__file__).parent
# Each room may import itself, `config` and the rooms of the levels before its own.
LEVELS = (
    ("ops",),
    ("models",),
    ("adapters", "formats", "data", "distributed"),
    ("verification", "eval"),
    ("training",),
    ("memory", "integrations"),
    ("cli",),
)
ALLOWED = {"config": {"config"}}
for _i, _level in enumerate(LEVELS):
    for _room in _level:
        ALLOWED[_room] = {"config", _room, *(below for level in LEVELS[:_i] for below in level)}
ALLOWED["data"].remove("models")  # text becomes batches without knowing who reads them
ALLOWED["formats"].add("data")  # a model folder holds the tokenizer, whose files data knows

FILES = sorted(ROOT.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported_modules(source: str, package: str) -> set[str]:
    """Dotted names of all modules that are imported anywhere in the source, in functions too."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return found


def rooms_in(source: str, package: str) -> set[str]:
    modules = [m.split(".") for m in imported_modules(source, package)]
    return {m[1] for m in modules if m[0] == "ssmith" and len(m) > 1 and m[1] in ALLOWED}


def test_imports_are_found_in_every_form():
    source = """
import ssmith.training.loop
from ssmith import eval as e
from ssmith.config.schema import X
from . import state
from ..ops.shapes import y
def f():
    from ssmith.cli import main
    importlib.import_module("ssmith.verification")
"""
    rooms = {"training", "eval", "config", "models", "ops", "cli", "verification"}
    assert rooms_in(source, "ssmith.models") == rooms


def test_the_levels_are_what_the_design_says():
    assert ALLOWED["models"] == {"config", "models", "ops"}
    assert ALLOWED["training"] >= {"eval", "verification", "formats", "data", "models", "ops"}
    assert not ALLOWED["training"] & {"memory", "integrations", "cli"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_a_room_imports_only_rooms_below(path):
    parts = path.relative_to(ROOT).parts
    if len(parts) == 1:
        assert parts[0] in ("__init__.py", "__main__.py"), f"{parts[0]} stands in no room"
        return
    room = parts[0]
    assert room in ALLOWED, f"{room} is no room that DESIGN.md names"
    upward = rooms_in(path.read_text(encoding="utf-8"), ".".join(("ssmith", *parts[:-1]))) - ALLOWED[room]
    assert not upward, f"{room} must not import {', '.join(sorted(upward))}"


@pytest.mark.parametrize("path", [f for f in FILES if name_of(f).startswith("config/")], ids=name_of)
def test_settings_need_no_torch(path):
    modules = imported_modules(path.read_text(encoding="utf-8"), "ssmith.config")
    assert not {m.split(".")[0] for m in modules} & {"torch", "numpy", "numba", "transformers"}


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_files_are_short_and_named_for_what_they_hold(path):
    assert path.name not in ("utils.py", "helpers.py", "common.py")
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 500, f"{lines} lines; 500 at most"


def in_a_fresh_interpreter(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


HEAVY = ("torch", "numpy", "numba", "transformers", "tokenizers", "tomli_w", "rich", "tyro")


@pytest.mark.parametrize(
    "code, heavy",
    [
        ("import ssmith; dir(ssmith); ssmith.__version__", HEAVY),
        ("import ssmith; ssmith.ModelConfig(vocab_size=3, hidden_size=2)", ("torch", "numpy", "numba")),
        ("import ssmith; ssmith.HybridLM", ("transformers", "numba", "tokenizers")),
    ],
)
def test_importing_loads_nothing_that_is_not_needed(code, heavy):
    loaded = in_a_fresh_interpreter(f"{code}; import sys; print(*[m for m in {heavy!r} if m in sys.modules])")
    assert loaded == ""


def test_every_public_name_can_be_had_again_and_again():
    """Importing a room binds its name in the package to the module: no function may have a room's name."""
    code = """
import importlib, ssmith
for room in ssmith._ROOMS: importlib.import_module(room)
for _ in range(2):
    found = {name: getattr(ssmith, name) for name in ssmith.__all__}
    wrong = [name for name, value in found.items() if name != "__version__" and not callable(value)]
    assert not wrong, f"these are no functions or classes: {wrong}"
"""
    in_a_fresh_interpreter(code)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'ssmith' has no attribute 'nothing'"):
        _ = ssmith.nothing
    assert set(ssmith.__all__) <= set(dir(ssmith))
