"""Mixers: one file each, with the module and its decode state."""

from ssmith.models.blocks.mamba1 import Mamba1, Mamba1State

__all__ = ["Mamba1", "Mamba1State"]
