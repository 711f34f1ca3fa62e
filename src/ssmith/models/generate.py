"""Writing: reads prompts and adds one token after another, streaming, alone or in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ssmith.models.sampling import Sampling, choose_token, seeded
from ssmith.models.state import LMState

if TYPE_CHECKING:
    from ssmith.models.lm import HybridLM

PROMPT_SEGMENT = 4096  # tokens of a prompt read at once: bounds memory, changes nothing else


@dataclass(frozen=True)
class Piece:
    """A piece of a stream: the text that became complete with `token`; `finish_reason` on the last one."""

    text: str
    token: int | None = None
    finish_reason: str | None = None


class GenerationMixin:
    """generate and stream for HybridLM."""

    def generate(
        self: Any,
        prompt: str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]] | Tensor,
        max_tokens: int = 40,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> Any:
        """Goes on writing after a prompt; only what is new comes back.

        Args:
            prompt: a text, or ids as a list or tensor (T,), or a list of either; a tensor (B, T) is a batch
                too. A text needs `model.tokenizer`; "" starts a new document.
            max_tokens: most new tokens; writing also ends at the tokenizer's end-of-text.
            temperature, top_k, top_p, min_p: see `Sampling`; temperature 0 is greedy.
            seed: makes the choice repeatable; each prompt of a batch gets what it would get alone.
            stop: strings that end the text; they are cut off. Needs a tokenizer.

        Returns:
            Text for a text, a list of ids for a list, a tensor for a tensor, a list for a list of prompts
            (a tensor (B, most new tokens), filled up with end-of-text, for a tensor of two dimensions).
        """
        prompts, batched = _as_batch(prompt)
        texts = isinstance(prompts[0], str)
        rows = [_Writer(self, p, stop, text=texts) for p in prompts]
        sampling = Sampling(temperature, top_k, top_p, min_p)
        for row, token in _tokens(self, [r.prompt for r in rows], max_tokens, sampling, seed, rows):
            rows[row].push(token)
        if texts:
            written: list[Any] = ["".join([*r.texts, r.flush()]) for r in rows]
        else:
            written = [r.ids for r in rows]
        if isinstance(prompt, Tensor):
            return _as_tensor(written, rows[0].eos, prompt) if batched else prompt.new_tensor(written[0])
        return written if batched else written[0]

    def stream(
        self: Any,
        prompt: str | Sequence[int] | Tensor,
        max_tokens: int = 40,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
    ) -> Iterator[Piece]:
        """Like `generate` for one prompt, as an iterator of pieces; their texts joined are the whole text."""
        prompts, batched = _as_batch(prompt)
        if batched:
            raise ValueError("stream takes one prompt")
        row = _Writer(self, prompts[0], stop, text=self.tokenizer is not None)
        tokens = _tokens(
            self, [row.prompt], max_tokens, Sampling(temperature, top_k, top_p, min_p), seed, [row]
        )

        def pieces() -> Iterator[Piece]:
            for _, token in tokens:
                yield Piece(row.push(token), token)
            yield Piece(row.flush(), None, row.finished or "length")

        return pieces()


def _as_batch(prompt: Any) -> tuple[list[Any], bool]:
    """The prompts as a list of texts or of lists of ids, and whether there was more than one level."""
    if isinstance(prompt, str):
        return [prompt], False
    if isinstance(prompt, Tensor):
        whole = prompt.dtype in (torch.int64, torch.int32)
        if prompt.dim() not in (1, 2) or prompt.numel() == 0 or not whole:
            kind = f"{prompt.dtype} of shape {tuple(prompt.shape)}"
            raise ValueError(f"ids must be int64 or int32, (T,) or (B, T) and not empty, got {kind}")
        return (prompt.tolist(), True) if prompt.dim() == 2 else ([prompt.tolist()], False)
    prompt = list(prompt)
    if not prompt:
        raise ValueError("the prompt is empty: give at least one token or a text")
    if isinstance(prompt[0], Integral):
        return [[int(i) for i in prompt]], False
    return [p if isinstance(p, str) else [int(i) for i in p] for p in prompt], True


def _as_tensor(rows: list[list[int]], eos: int | None, like: Tensor) -> Tensor:
    longest = max(map(len, rows))
    return like.new_tensor([r + [eos or 0] * (longest - len(r)) for r in rows]).reshape(len(rows), longest)


class _Writer:
    """What one prompt has become: its new ids, its complete text, and why it ended."""

    def __init__(self, model: Any, prompt: Any, stop: str | Sequence[str] | None, text: bool) -> None:
        self.stops = [stop] if isinstance(stop, str) else list(stop or [])
        tokenizer = model.tokenizer
        if (isinstance(prompt, str) or self.stops) and not tokenizer:
            raise ValueError("the model has no tokenizer: give ids, and no stop strings")
        if "" in self.stops:
            raise ValueError("a stop string must not be empty")
        self.eos: int | None = getattr(tokenizer, "eos_token_id", None)
        if isinstance(prompt, str):
            prompt = tokenizer.encode(prompt) or ([] if self.eos is None else [self.eos])
        self.prompt: list[int] = prompt
        self.ids: list[int] = []
        self.texts: list[str] = []
        self.finished: str | None = None
        self._decoder = tokenizer.decode_stream() if text or self.stops else None
        self._held = ""

    def push(self, token: int) -> str:
        """Takes the next token; gives the text that is certain to stand."""
        self.ids.append(token)
        if token == self.eos:
            self.finished = "eos"
            return ""
        return self._emit(self._decoder.push(token)) if self._decoder is not None else ""

    def flush(self) -> str:
        """The text that was held back, at the end."""
        if self._decoder is None or self.finished == "stop":
            return ""
        text = self._emit(self._decoder.flush())
        if self.finished != "stop":
            text, self._held = text + self._held, ""
        return text

    def _emit(self, text: str) -> str:
        self._held += text
        found = [i for s in self.stops if (i := self._held.find(s)) >= 0]
        if found:
            self.finished = "stop"
            ready, self._held = self._held[: min(found)], ""
        else:
            keep = max((_overlap(self._held, s) for s in self.stops), default=0)
            ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        self.texts.append(ready)
        return ready


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` may be the beginning of `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


def _tokens(
    model: HybridLM,
    prompts: list[list[int]],
    max_tokens: int,
    sampling: Sampling,
    seed: int | None,
    rows: list[_Writer],
) -> Iterator[tuple[int, int]]:
    """(row, new token), step by step; a row that is finished takes no further part."""
    if max_tokens < 0:
        raise ValueError(f"max_tokens must not be negative, got {max_tokens}")
    generators = [seeded(seed) for _ in prompts]
    for i, prompt in enumerate(prompts):
        check_prompt(prompt, i, model.config.vocab_size)
    return _steps(model, prompts, max_tokens, sampling, generators, rows)


def _steps(
    model: HybridLM,
    prompts: list[list[int]],
    max_tokens: int,
    sampling: Sampling,
    generators: list[torch.Generator],
    rows: list[_Writer],
) -> Iterator[tuple[int, int]]:
    device = model.embedding.weight.device
    # a vocabulary may be padded past the tokenizer's ids: those mean nothing
    known = None if model.tokenizer is None else model.tokenizer.vocab_size
    read = [_read_prompt(model, torch.tensor([p], dtype=torch.long, device=device)) for p in prompts]
    state = LMState.stack([s for s, _ in read])
    last = torch.cat([t for _, t in read])
    active = list(range(len(prompts)))
    for _ in range(max_tokens):
        logits, state = _step(model, last, state)
        chosen = [choose_token(logits[i, :known], sampling, generators[row]) for i, row in enumerate(active)]
        yield from zip(active, chosen, strict=True)
        going = [i for i, row in enumerate(active) if rows[row].finished is None]
        if not going:
            return
        if len(going) < len(active):
            state = state.select(going)
        active, chosen = [active[i] for i in going], [chosen[i] for i in going]
        last = torch.tensor(chosen, device=device)[:, None]


def check_prompt(prompt: list[int], row: int, vocab_size: int) -> None:
    """Raises ValueError when a prompt has no token, or one outside [0, vocab_size), with its place."""
    if not prompt:
        raise ValueError("the prompt is empty: give at least one token or a text")
    for position, token in enumerate(prompt):
        if not 0 <= token < vocab_size:
            raise ValueError(
                f"token id {token} at row {row}, position {position} is outside the "
                f"vocabulary [0, {vocab_size})"
            )


@torch.no_grad()
def _read_prompt(model: HybridLM, prompt_1T: Tensor) -> tuple[LMState, Tensor]:
    """The state after all tokens but the last, and the last."""
    state = model.initial_state(1)
    for segment in prompt_1T[:, :-1].split(PROMPT_SEGMENT, 1):
        if segment.shape[1]:
            state = model(segment, state=state, logits=False).state
    return state, prompt_1T[:, -1:]


@torch.no_grad()
def _step(model: HybridLM, last_B1: Tensor, state: LMState) -> tuple[Tensor, LMState]:
    out = model(last_B1, state=state)
    return out.logits[:, -1], out.state
