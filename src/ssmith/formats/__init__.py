"""The only place that knows file formats: saves and loads models and states."""

from ssmith.formats.engine import from_engine_arrays
from ssmith.formats.hf import load, save
from ssmith.formats.state import load_state, save_state

__all__ = ["from_engine_arrays", "load", "load_state", "save", "save_state"]
