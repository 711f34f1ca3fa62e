"""HybridLM: embedding, blocks, final norm, head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ssmith.config.schema import ModelConfig
from ssmith.models.blocks import Mamba1
from ssmith.models.blocks.norm import RMSNorm
from ssmith.models.generate import GenerationMixin
from ssmith.models.inputs import prepare_rows
from ssmith.models.state import LMState
from ssmith.ops import linear_cross_entropy
from ssmith.ops.dispatch import BACKENDS

ACTIVATION_CHECKPOINTING = ("none", "full")


@dataclass(frozen=True)
class LMOutput:
    """What a call of HybridLM gives.

    Attributes:
        loss: cross-entropy plus the weighted losses of mixtures of experts; None without targets.
        cross_entropy: mean over the counted targets, in nats; None without targets.
        logits: (B, T, V), zeros at padding; None with `logits=False`.
        state: what each sequence has left behind.
        routing: of mixtures of experts, one entry per layer that has one.
    """

    loss: Tensor | None
    cross_entropy: Tensor | None
    logits: Tensor | None
    state: LMState
    routing: tuple[Any, ...] = ()


class Layer(nn.Module):
    """x + mixer(norm(x))."""

    def __init__(self, block: str, config: ModelConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mixer = _mixer(block, config)

    def forward(self, x_BTD: Tensor, state: Any, cu_seqlens: Tensor | None) -> tuple[Tensor, Any]:
        y_BTD, state = self.mixer(self.norm(x_BTD), state, cu_seqlens)
        return x_BTD + y_BTD, state


class Head(nn.Module):
    """Logits from hidden states; a tied head has no weight of its own and is handed the embedding's."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.weight, self.bias = None, None
        if not config.tie_embeddings:
            self.weight = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
            nn.init.normal_(self.weight, std=0.02)
        if config.head_bias:
            self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, x_BTD: Tensor, tied_weight: Tensor) -> Tensor:
        return F.linear(x_BTD, tied_weight if self.weight is None else self.weight, self.bias)


class HybridLM(GenerationMixin, nn.Module):
    """A language model of the blocks that `config` names, float32, with initial weights as the papers say.

    Seed with torch.manual_seed. `tokenizer` is the tokenizer that was loaded or trained with it, or None.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.tokenizer: Any = None
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(block, config) for block in config.layers)
        self.final_norm = RMSNorm(config.hidden_size, config.norm_eps) if config.final_norm else nn.Identity()
        self.head = Head(config)
        self.activation_checkpointing = "none"
        nn.init.normal_(self.embedding.weight, std=0.02)
        with torch.no_grad():  # residuals add up: GPT-2's rescaling, as Mamba-1 does it
            for mixer in self._mixers():
                mixer.out_proj.weight.div_(len(self.layers) ** 0.5)

    def set_activation_checkpointing(self, kind: str) -> None:
        """`full` keeps only each block's input for backward; gradients are the same to the bit."""
        if kind not in ACTIVATION_CHECKPOINTING:
            raise ValueError(f"activation checkpointing must be 'none' or 'full', got {kind!r}")
        self.activation_checkpointing = kind

    def set_backend(self, backend: str) -> None:
        """The backend of every operator: "auto", "cpu" or "reference"."""
        if backend not in BACKENDS:
            raise ValueError(f"unknown backend {backend!r}; choose one of {', '.join(BACKENDS)}")
        for module in self.modules():
            if hasattr(module, "backend"):
                module.backend = backend  # pyright: ignore[reportArgumentType]

    def initial_state(self, rows: int = 1) -> LMState:
        """The state before the first token, for `rows` sequences."""
        return LMState(tuple(mixer.initial_state(rows) for mixer in self._mixers()))

    def _mixers(self) -> list[Any]:
        return [layer.mixer for layer in self.layers]

    def forward(
        self,
        ids: Tensor,
        targets: Tensor | None = None,
        labels: Tensor | None = None,
        state: LMState | None = None,
        attention_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        logits: bool = True,
    ) -> LMOutput:
        """Reads tokens; the same call trains, reads a prompt and decodes one token.

        Args:
            ids: (B, T) token ids.
            targets: (B, T) what to predict at each position, -100 where nothing.
            labels: shorthand: `labels=ids` shifts inside each document.
            state: what went before, from `.state` of an earlier output.
            attention_mask: (B, T), nonzero at real tokens; padding anywhere changes nothing.
            cu_seqlens: int32 (documents + 1,), borders of documents packed in one row (B is 1); states are
                then per document.
            logits: False: logits are not made, and none of the whole batch is ever held.

        Raises:
            ValueError: ids or targets outside the vocabulary (on a CPU, with position and value), empty
                input, no target that counts, shapes that do not fit.
        """
        rows = prepare_rows(ids, targets, labels, attention_mask, cu_seqlens, self.config.vocab_size)
        self._check_state(state, rows.ids.shape[0] if rows.cu_seqlens is None else len(rows.cu_seqlens) - 1)
        x, state = self._blocks(self.embedding(rows.ids), state, rows.cu_seqlens)
        x = self.final_norm(x)
        loss = None if rows.targets is None else self._loss(x, rows.targets)
        out = self.head(x, self.embedding.weight) if logits else None
        if out is not None and rows.kept is not None:
            # kept positions in row order are the packed row's order
            out = out.new_zeros(*ids.shape, out.shape[-1]).masked_scatter(rows.kept[..., None], out)
        return LMOutput(loss, loss, out, state)

    def _blocks(self, x: Tensor, state: LMState | None, cu_seqlens: Tensor | None) -> tuple[Tensor, LMState]:
        states = []
        for i, layer in enumerate(self.layers):
            before = None if state is None else state.layers[i]
            if self.activation_checkpointing == "full" and torch.is_grad_enabled():
                x, after = checkpoint(layer, x, before, cu_seqlens, use_reentrant=False)  # pyright: ignore
            else:
                x, after = layer(x, before, cu_seqlens)
            states.append(after)
        return x, LMState(tuple(states))

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        weight = self.embedding.weight if self.head.weight is None else self.head.weight
        return linear_cross_entropy(x, weight, targets, bias=self.head.bias)

    def _check_state(self, state: LMState | None, rows: int) -> None:
        if state is not None and (len(state.layers) != len(self.layers) or state.rows != rows):
            raise ValueError(
                f"the state is of {len(state.layers)} layers and {state.rows} sequences, "
                f"the call of {len(self.layers)} layers and {rows} sequences"
            )


def _mixer(block: str, config: ModelConfig) -> nn.Module:
    assert block == "mamba1", block
    return Mamba1(config.hidden_size, config.mamba1)
