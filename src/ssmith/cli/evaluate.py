"""`ssmith evaluate MODEL --data PATH`: perplexity and bits per byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated

from tyro.conf import Positional

from ssmith.cli.flags import flag, parse_flags

DESCRIPTION = "Measures how well a model foretells a text: perplexity, bits per byte, accuracy, speed."


@dataclass
class EvaluateFlags:
    model: Annotated[Positional[str], flag("MODEL", "a model folder")]
    data: Annotated[
        str | None,
        flag(
            "PATH", "text file, folder, .jsonl, or - (default: the validation part of the corpus that ships)"
        ),
    ] = None
    json: Annotated[bool, flag("", "print one JSON object")] = False


def run(arguments: Sequence[str]) -> int:
    flags = parse_flags(EvaluateFlags, "evaluate", DESCRIPTION, arguments)
    import json

    from ssmith.data import read_documents, shipped_corpus, split_documents
    from ssmith.eval import evaluate
    from ssmith.formats import load

    model = load(flags.model)
    documents = read_documents(flags.data) if flags.data is not None else split_documents(shipped_corpus())[1]
    report = evaluate(model, documents)
    if flags.json:
        print(json.dumps(asdict(report)))
        return 0
    print(f"documents      {report.documents}")
    print(f"tokens         {report.tokens:,}")
    print(f"loss           {report.loss:.4f} nats per token")
    print(f"perplexity     {report.perplexity:.4f}")
    print(f"bits per byte  {report.bits_per_byte:.4f}")
    print(f"accuracy       {report.accuracy:.2%}")
    print(f"speed          {report.tokens_per_second:,.0f} tokens/s")
    return 0
