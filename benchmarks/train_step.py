"""A whole training step against the time of its matrix products alone (the floor), interleaved.

    . benchmarks/env.sh && python benchmarks/train_step.py S M --threads 1

S: Mamba-1, D 256, 4 layers, V 256, 4 x 512 tokens. M: D 768, 6 layers, V 4096, 2 x 1024. The step is forward,
backward, clipping and AdamW, through the functions that `ssmith.train` calls.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from record import interleaved, record

from ssmith import HybridLM, ModelConfig, OptimConfig
from ssmith.data import Batch
from ssmith.training.loop import accumulate_gradients
from ssmith.training.optim import clip_gradients, make_optimizer

SIZES = {"S": (256, 4, 256, 4, 512), "M": (768, 6, 4096, 2, 1024)}


def products(hidden: int, layers: int, vocabulary: int, tokens: int) -> Callable[[], None]:
    """The step's matrix products and nothing else: one forward and two backward of each."""
    inner, rank = 2 * hidden, -(-hidden // 16)
    per_layer = [(hidden, 2 * inner), (inner, rank + 32), (rank, inner), (inner, hidden)]
    sizes = per_layer * layers + [(hidden, vocabulary)]
    data = [(torch.randn(tokens, k), torch.randn(n, k), torch.randn(tokens, n)) for k, n in sizes]

    def run() -> None:
        for x, weight, gradient in data:
            x @ weight.t()
            gradient @ weight
            gradient.t() @ x

    return run


def step(hidden: int, layers: int, vocabulary: int, batch: int, time: int) -> Callable[[], None]:
    """Our whole training step."""
    torch.manual_seed(0)
    model = HybridLM(ModelConfig(vocab_size=vocabulary, hidden_size=hidden, repeats=layers))
    optimizer = make_optimizer(model, OptimConfig())
    ids = torch.randint(0, vocabulary, (batch, time))
    data = Batch(ids, ids.roll(-1, 1), ids.numel(), 0.0)

    def run() -> None:
        optimizer.zero_grad(set_to_none=True)
        accumulate_gradients(model, data, None)
        clip_gradients(model.named_parameters(), 1.0)
        optimizer.step()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for size in arguments.sizes:
        hidden, layers, vocabulary, batch, time = SIZES[size]
        functions = {
            "products": products(hidden, layers, vocabulary, batch * time),
            "ssmith": step(hidden, layers, vocabulary, batch, time),
        }
        medians = interleaved(functions, arguments.rounds)
        record("train_step", f"{size} {batch}x{time}", "float32", arguments.threads, medians, "products")
        print(f"{size}: {batch * time / medians['ssmith'] * 1e3:,.0f} tokens/s")


if __name__ == "__main__":
    main()
