"""What simple compressors make of the validation part of a corpus: a byte 5-gram, and xz.

    python benchmarks/byte_baselines.py [--data PATH] [--model FOLDER]

The 5-gram is interpolated Kneser-Ney with one discount per order, D = n1 / (n1 + 2 n2) (Chen, Goodman 1999,
equations 15 to 18), learned from the training documents and measured on each validation document from its
start. xz -9 compresses the validation text behind the training text; the difference in size counts. The
split is that of `ssmith train`; with --model the model's bits per byte stand beside them.
"""

from __future__ import annotations

import argparse
import lzma
import math
from collections import Counter

from ssmith.data import Document, read_documents, shipped_corpus, split_documents

ORDER = 5
START = 256  # stands before a document


class KneserNey:
    """Counts of every order: the highest of occurrences, lower ones of distinct bytes before."""

    def __init__(self, documents: list[Document]) -> None:
        grams: Counter[tuple[int, ...]] = Counter()
        for document in documents:
            padded = [START] * (ORDER - 1) + list(document.text.encode())
            for i in range(ORDER - 1, len(padded)):
                grams[tuple(padded[i - ORDER + 1 : i + 1])] += 1
        self.counts: list[dict[tuple[int, ...], int]] = [grams]
        for _ in range(ORDER - 1):  # from order n to n - 1: one for every distinct byte before
            self.counts.append(Counter(gram[1:] for gram in self.counts[-1]))
        self.discounts, self.totals, self.kinds = [], [], []
        for counts in self.counts:
            once = sum(1 for c in counts.values() if c == 1)
            twice = sum(1 for c in counts.values() if c == 2)
            self.discounts.append(once / (once + 2 * twice) if once else 0.5)
            totals: Counter[tuple[int, ...]] = Counter()
            kinds: Counter[tuple[int, ...]] = Counter()
            for gram, count in counts.items():
                totals[gram[:-1]] += count
                kinds[gram[:-1]] += 1
            self.totals.append(totals)
            self.kinds.append(kinds)

    def probability(self, gram: tuple[int, ...]) -> float:
        """Of the last byte after those before it."""
        p = 1 / 256
        for level in range(ORDER - 1, -1, -1):
            part = gram[level:]
            total = self.totals[level].get(part[:-1], 0)
            if total:
                discount = self.discounts[level]
                seen = max(self.counts[level].get(part, 0) - discount, 0.0)
                p = (seen + discount * self.kinds[level][part[:-1]] * p) / total
        return p

    def bits(self, document: Document) -> float:
        """To write a document, byte by byte."""
        padded = [START] * (ORDER - 1) + list(document.text.encode())
        return -sum(
            math.log2(self.probability(tuple(padded[i - ORDER + 1 : i + 1])))
            for i in range(ORDER - 1, len(padded))
        )


def xz_bits(train: list[Document], validation: list[Document]) -> float:
    """Bits that the validation text adds to the compressed training text."""
    before = "".join(d.text for d in train).encode()
    behind = before + "".join(d.text for d in validation).encode()
    sizes = [len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)) for text in (before, behind)]
    return 8.0 * (sizes[1] - sizes[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="default: the corpus that ships")
    parser.add_argument("--model", help="a model folder to measure on the same text")
    arguments = parser.parse_args()
    documents = shipped_corpus() if arguments.data is None else read_documents(arguments.data)
    train, validation = split_documents(documents)
    size = sum(len(d.text.encode()) for d in validation)
    ngram = KneserNey(train)
    print(f"validation: {len(validation)} documents, {size:,} bytes")
    print(f"5-gram Kneser-Ney  {sum(map(ngram.bits, validation)) / size:.4f} bits per byte")
    print(f"xz -9              {xz_bits(train, validation) / size:.4f} bits per byte")
    if arguments.model is not None:
        from ssmith import evaluate, load

        report = evaluate(load(arguments.model), validation)
        print(f"{arguments.model:<18} {report.bits_per_byte:.4f} bits per byte")


if __name__ == "__main__":
    main()
