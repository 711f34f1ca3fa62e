"""Every setting of the library, as frozen dataclasses in Hugging Face's words. No torch here."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

MIXERS = ("mamba1",)
FLOAT_DTYPES = ("float32",)
BACKENDS = ("auto", "cpu", "reference")


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` for the closest known word, or the list of all of them."""
    known = list(known)
    close = difflib.get_close_matches(word, known, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def check_seed(seed: object) -> None:
    """Raises ValueError unless `seed` is a whole number that every generator takes."""
    ok = isinstance(seed, int) and not isinstance(seed, bool) and 0 <= seed < 2**63
    _require(ok, f"seed must be a whole number from 0 to 2^63 - 1, got {seed!r}")


def _number(**values: object) -> None:
    for name, value in values.items():
        ok = isinstance(value, int | float) and not isinstance(value, bool)
        _require(ok, f"{name} must be a number, got {value!r}")


def _instance(**values: tuple[object, type]) -> None:
    for name, (value, kind) in values.items():
        _require(isinstance(value, kind), f"{name} must be a {kind.__name__}, got {value!r}")


def _positive_int(**values: object) -> None:
    for name, value in values.items():
        ok = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        _require(ok, f"{name} must be a whole number of at least 1, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Mamba1Config:
    """The Mamba-1 mixer (arXiv 2312.00752).

    Attributes:
        state_size: numbers of state per channel, N.
        conv_kernel: width of the causal convolution, K.
        expand: inner width over hidden size; the product must be whole.
        time_step_rank: rank R of the projection to dt; "auto" is ceil(hidden_size / 16).
        use_bias: bias on in_proj and out_proj.
        use_conv_bias, x_proj_bias, dt_proj_bias: bias on the convolution, x_proj, dt_proj.
        dt_b_c_norm: RMS normalisation of dt, B and C: None, "plain" (no weights, Falcon-Mamba) or "learned"
            (Jamba).
        dt_b_c_norm_eps: its epsilon.
        A_log_clamp: (low, high) between which A_log is clamped before A = -exp(A_log); at or past the clamp
            its gradient is zero. None: no clamp.
        discretization: "euler" (published checkpoints) or "zoh".
        time_step_min, time_step_max, time_step_floor: initial dt is log-uniform between the first two and
            never below the last.
    """

    state_size: int = 16
    conv_kernel: int = 4
    expand: float = 2
    time_step_rank: int | str = "auto"
    use_bias: bool = False
    use_conv_bias: bool = True
    x_proj_bias: bool = False
    dt_proj_bias: bool = True
    dt_b_c_norm: str | None = None
    dt_b_c_norm_eps: float = 1e-6
    A_log_clamp: tuple[float, float] | None = None
    discretization: str = "euler"
    time_step_min: float = 0.001
    time_step_max: float = 0.1
    time_step_floor: float = 1e-4

    def __post_init__(self) -> None:
        _positive_int(state_size=self.state_size, conv_kernel=self.conv_kernel)
        if self.time_step_rank != "auto":
            _positive_int(time_step_rank=self.time_step_rank)
        _require(self.expand > 0, f"expand must be positive, got {self.expand!r}")
        _require(
            self.dt_b_c_norm in (None, "plain", "learned"),
            f"dt_b_c_norm must be None, 'plain' or 'learned', got {self.dt_b_c_norm!r}",
        )
        _require(
            self.discretization in ("euler", "zoh"),
            f"discretization must be 'euler' or 'zoh', got {self.discretization!r}",
        )
        if self.A_log_clamp is not None:
            clamp: object = self.A_log_clamp
            numbers = isinstance(clamp, tuple | list) and all(isinstance(x, int | float) for x in clamp)
            _require(
                numbers and len(self.A_log_clamp) == 2 and self.A_log_clamp[0] < self.A_log_clamp[1],
                f"A_log_clamp must be (low, high) with low < high, got {clamp!r}",
            )
            object.__setattr__(self, "A_log_clamp", tuple(float(x) for x in self.A_log_clamp))
        _require(self.dt_b_c_norm_eps > 0, f"dt_b_c_norm_eps must be positive, got {self.dt_b_c_norm_eps!r}")
        _require(self.time_step_floor > 0, f"time_step_floor must be positive, got {self.time_step_floor!r}")
        _require(
            0 < self.time_step_min <= self.time_step_max,
            f"time_step_min and time_step_max must be 0 < min <= max, got {self.time_step_min}, "
            f"{self.time_step_max}",
        )

    def inner_size(self, hidden_size: int) -> int:
        """Inner width I."""
        inner = round(self.expand * hidden_size)  # 1.15 x 100 is not quite 115 to a computer
        _require(
            inner >= 1 and math.isclose(inner, self.expand * hidden_size, rel_tol=1e-9),
            f"expand {self.expand} times hidden_size {hidden_size} must be a whole number of at least 1",
        )
        return inner

    def rank(self, hidden_size: int) -> int:
        """Rank R of the projection to dt."""
        return math.ceil(hidden_size / 16) if self.time_step_rank == "auto" else int(self.time_step_rank)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A language model: embedding, blocks, final norm, head.

    Attributes:
        vocab_size: number of token ids, V.
        hidden_size: model width, D.
        blocks: the mixers of a group of layers, in order: "mamba1".
        repeats: how many times the group stands in the model.
        tie_embeddings: the head uses the embedding's weight.
        head_bias: bias on the head.
        final_norm: an RMS norm before the head.
        norm_eps: epsilon of the norms.
        mamba1: settings of the Mamba-1 mixers.
    """

    vocab_size: int
    hidden_size: int
    blocks: tuple[str, ...] = ("mamba1",)
    repeats: int = 1
    tie_embeddings: bool = True
    head_bias: bool = False
    final_norm: bool = True
    norm_eps: float = 1e-5
    mamba1: Mamba1Config = field(default_factory=Mamba1Config)

    def __post_init__(self) -> None:
        _positive_int(vocab_size=self.vocab_size, hidden_size=self.hidden_size, repeats=self.repeats)
        _require(
            not isinstance(self.blocks, str) and len(tuple(self.blocks)) > 0,
            f"blocks must be a list of at least one name, got {self.blocks!r}",
        )
        object.__setattr__(self, "blocks", tuple(self.blocks))
        for block in self.blocks:
            _require(block in MIXERS, f"unknown block {block!r}{nearest(str(block), MIXERS)}")
        _require(self.norm_eps > 0, f"norm_eps must be positive, got {self.norm_eps!r}")
        _instance(mamba1=(self.mamba1, Mamba1Config))
        self.mamba1.inner_size(self.hidden_size)

    @property
    def layers(self) -> tuple[str, ...]:
        """The block of every layer, first to last."""
        return self.blocks * self.repeats


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """AdamW with a warm-up and cosine schedule.

    Attributes:
        lr: peak learning rate.
        beta1, beta2, eps, weight_decay: AdamW's; only matrices are decayed.
        warmup_steps: steps of linear warm-up from 0.
        min_lr_ratio: the learning rate at the end over the peak.
        clip_norm: largest global norm of the gradient; 0: no clipping.
    """

    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.1
    warmup_steps: int = 100
    min_lr_ratio: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        _number(**vars(self))
        _require(self.lr > 0 and math.isfinite(self.lr), f"lr must be positive, got {self.lr!r}")
        for name in ("beta1", "beta2"):
            _require(0 <= getattr(self, name) < 1, f"{name} must be in [0, 1), got {getattr(self, name)!r}")
        _require(self.eps > 0, f"eps must be positive, got {self.eps!r}")
        for name in ("weight_decay", "warmup_steps", "clip_norm"):
            _require(getattr(self, name) >= 0, f"{name} must not be negative, got {getattr(self, name)!r}")
        _require(0 <= self.min_lr_ratio <= 1, f"min_lr_ratio must be in [0, 1], got {self.min_lr_ratio!r}")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run.

    Attributes:
        out: the folder that gets run.toml, metrics.jsonl and the model; None: nothing is written.
        steps, epochs: how long to train; give one of them (both None: one epoch).
        batch_size: rows in one optimizer step.
        micro_batch_size: rows in one forward pass; gradients of a step are accumulated, weighted by tokens.
            None: the whole batch.
        max_seq_len: tokens in one row.
        seed: seed of the initial weights, and of the order of the data.
        dtype: what the products compute in.
        activation_checkpointing: "none", or "full" (only the inputs of blocks are kept).
        backend: of the operators: "auto", "cpu" or "reference".
        eval_every: steps between validations; 0: only at the end.
        log_every: steps between printed lines.
        validation_fraction: share of the documents kept for validation.
        optim: the optimizer's settings.
    """

    out: str | None = None
    steps: int | None = None
    epochs: float | None = None
    batch_size: int = 8
    micro_batch_size: int | None = None
    max_seq_len: int = 512
    seed: int = 0
    dtype: str = "float32"
    activation_checkpointing: str = "none"
    backend: str = "auto"
    eval_every: int = 0
    log_every: int = 10
    validation_fraction: float = 0.05
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        _require(
            self.steps is None or self.epochs is None,
            f"give steps or epochs, not both (got {self.steps} and {self.epochs})",
        )
        if self.steps is not None:
            _positive_int(steps=self.steps)
        _require(
            self.epochs is None or (self.epochs > 0 and math.isfinite(self.epochs)),
            f"epochs must be positive, got {self.epochs!r}",
        )
        _instance(optim=(self.optim, OptimConfig))
        check_seed(self.seed)
        _positive_int(batch_size=self.batch_size, max_seq_len=self.max_seq_len, log_every=self.log_every)
        if self.micro_batch_size is not None:
            _positive_int(micro_batch_size=self.micro_batch_size)
        dtypes = ", ".join(FLOAT_DTYPES)
        _require(self.dtype in FLOAT_DTYPES, f"dtype must be one of {dtypes} here, got {self.dtype!r}")
        backends = nearest(self.backend, BACKENDS)
        _require(self.backend in BACKENDS, f"unknown backend {self.backend!r}{backends}")
        _require(
            self.activation_checkpointing in ("none", "full"),
            f"activation_checkpointing must be 'none' or 'full', got {self.activation_checkpointing!r}",
        )
        _require(
            0 < self.validation_fraction < 1,
            f"validation_fraction must be between 0 and 1, got {self.validation_fraction!r}",
        )
        _require(self.eval_every >= 0, f"eval_every must not be negative, got {self.eval_every!r}")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A model and how to train it. `data` is a path; None: the corpus that ships."""

    model: ModelConfig
    train: TrainConfig = field(default_factory=TrainConfig)
    data: str | None = None
