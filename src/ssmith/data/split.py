"""Splits documents into training and validation, the same way whatever the seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ssmith.data.text import Document

# How far, in bytes, the cut of a single document may move to reach a line break or a space.
_NEAR = 2048


def split_documents(
    documents: Sequence[Document], fraction: float = 0.05
) -> tuple[list[Document], list[Document]]:
    """(training, validation): whole documents, `fraction` of them (at least one) to validation.

    The picks are evenly spaced over the order given, so no seed changes what is held out. A single document
    gives its last `fraction` of bytes, cut between characters and, where one is near, after a line break or
    a space. Raises ValueError for a fraction outside (0, 1) and when one side would be empty.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"the validation fraction must be between 0 and 1, got {fraction}")
    if not documents:
        raise ValueError("there are no documents to split into training and validation; give some text")
    if len(documents) == 1:
        train, validation = _split_one(documents[0], fraction)
        return [train], [validation]
    n = len(documents)
    k = max(1, round(fraction * n))
    if k >= n:
        raise ValueError(
            f"a validation fraction of {fraction} of {n} documents leaves none to train on; "
            "lower it, or add documents"
        )
    # floor((j + 0.5) n / k) in whole numbers, exact for any n.
    held_out = {(2 * j + 1) * n // (2 * k) for j in range(k)}
    train = [document for i, document in enumerate(documents) if i not in held_out]
    return train, [documents[i] for i in sorted(held_out)]


def _split_one(document: Document, fraction: float) -> tuple[Document, Document]:
    data = document.text.encode("utf-8")
    held_out = max(1, round(fraction * len(data)))
    cut = _cut_near(data, len(data) - held_out, min(held_out // 4, _NEAR))
    if not 0 < cut < len(data):
        raise ValueError(
            f"{document.source}: {len(data)} bytes are too few to split into training and validation; "
            "give more text, or name validation data of its own"
        )
    before, after = data[:cut].decode("utf-8"), data[cut:].decode("utf-8")
    return replace(document, text=before), replace(document, text=after)


def _cut_near(data: bytes, cut: int, reach: int) -> int:
    """After the nearest line break, else space, within `reach` of `cut`, else a character border."""
    for separator in (b"\n", b" "):
        earlier = data.rfind(separator, max(0, cut - reach - 1), cut) + 1
        later = data.find(separator, cut, cut + reach) + 1
        places = [place for place in (earlier, later) if 0 < place < len(data)]
        if places:
            return min(places, key=lambda place: abs(place - cut))
    while 0 < cut < len(data) and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut
