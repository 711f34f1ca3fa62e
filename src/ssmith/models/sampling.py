"""The next token from logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ssmith.config.schema import check_seed


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: 0 takes the likeliest token; else logits are divided by it.
        top_k: only the k likeliest tokens.
        top_p: only the likeliest tokens whose probabilities reach p together (at least one).
        min_p: only tokens at least min_p times as likely as the likeliest.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 or more, got {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        for name in ("top_p", "min_p"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise ValueError(f"{name} must be in (0, 1], got {value}")


def choose_token(logits_V: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """The next token id from the logits of one position. Filters act in the order top-k, top-p, min-p."""
    logits = logits_V.float().cpu()
    if not bool(torch.isfinite(logits).all()):
        raise ValueError("the logits are not finite: the weights hold NaN or infinity")
    if sampling.temperature == 0:
        return int(logits.argmax())
    logits = (logits - logits.max()) / sampling.temperature  # no overflow, however cold
    if sampling.top_k is not None and sampling.top_k < len(logits):
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k).values[-1], -torch.inf)
    if sampling.top_p is not None:
        ordered, order = logits.softmax(-1).sort(descending=True)
        beyond = ordered.cumsum(-1) - ordered >= sampling.top_p
        logits = logits.index_fill(-1, order[beyond], -torch.inf)
    if sampling.min_p is not None:
        probabilities = logits.softmax(-1)
        logits = logits.masked_fill(probabilities < sampling.min_p * probabilities.max(), -torch.inf)
    return int(torch.multinomial(logits.softmax(-1), 1, generator=generator))


def seeded(seed: int | None) -> torch.Generator:
    """A generator from a seed, or from the system's randomness."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        check_seed(seed)
        generator.manual_seed(seed)
    return generator
