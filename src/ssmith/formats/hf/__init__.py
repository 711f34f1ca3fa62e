"""Hugging Face model folders, both ways: config.json, safetensors, tokenizer."""

from ssmith.formats.hf.folder import FAMILIES, load, save

__all__ = ["FAMILIES", "load", "save"]
