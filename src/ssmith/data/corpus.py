"""The corpus that ships with the package: two novels, one document a chapter."""

from __future__ import annotations

import re
from importlib.resources import files

from ssmith.data.text import Document

CORPUS_FILES = ("pride_and_prejudice.txt", "sense_and_sensibility.txt")
_HEADING = re.compile(r"^(?:Chapter|CHAPTER) (\d+)[ \t]*$", re.MULTILINE)


def shipped_corpus() -> list[Document]:
    """Jane Austen's "Pride and Prejudice" and "Sense and Sensibility", 111 chapters, 1.36 MB, public domain.

    The documents of a novel, joined, are its file to the byte: what stands before chapter 1 belongs to the
    first document.
    """
    folder = files("ssmith.data") / "corpus"
    return [
        chapter
        for name in CORPUS_FILES
        for chapter in split_chapters((folder / name).read_bytes().decode("utf-8"), name)
    ]


def split_chapters(text: str, source: str) -> list[Document]:
    """`text` cut before each line "Chapter N" or "CHAPTER N" but the first; nothing is lost.

    A text without such lines is one document.
    """
    headings = list(_HEADING.finditer(text))
    if not headings:
        return [Document(text, source)]
    starts = [0, *(heading.start() for heading in headings[1:])]
    ends = [*starts[1:], len(text)]
    return [
        Document(text[start:end], f"{source}, chapter {heading[1]}")
        for heading, start, end in zip(headings, starts, ends, strict=True)
    ]
