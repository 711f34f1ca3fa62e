import dataclasses
import typing

import pytest

from ssmith.config import Mamba1Config, ModelConfig, OptimConfig, Recipe, TrainConfig
from ssmith.config.schema import nearest

SETTINGS = (Mamba1Config, ModelConfig, OptimConfig, TrainConfig, Recipe)


def model(**changes):
    return ModelConfig(**{"vocab_size": 257, "hidden_size": 64, **changes})


def test_the_defaults_are_those_of_the_contract():
    assert model(blocks=["mamba1"], repeats=2) == ModelConfig(
        vocab_size=257, hidden_size=64, blocks=("mamba1",), repeats=2,
        tie_embeddings=True, head_bias=False, final_norm=True, norm_eps=1e-5,
        mamba1=Mamba1Config(
            state_size=16, conv_kernel=4, expand=2, time_step_rank="auto", use_bias=False, use_conv_bias=True,
            x_proj_bias=False, dt_proj_bias=True, dt_b_c_norm=None, A_log_clamp=None, discretization="euler",
        ),
    )  # fmt: skip


@pytest.mark.parametrize("cls", SETTINGS)
def test_settings_are_frozen_hashable_and_by_keyword_only(cls):
    required = {"vocab_size": 3, "hidden_size": 2} if cls is ModelConfig else {}
    required = {"model": model()} if cls is Recipe else required
    settings = cls(**required)
    field = dataclasses.fields(cls)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(settings, field, 1)
    assert hash(settings) == hash(cls(**required))
    with pytest.raises(TypeError, match="positional argument"):
        cls(1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        cls(**required, nothing=1)


@pytest.mark.parametrize("cls", SETTINGS)
def test_what_can_be_none_is_none_by_default(cls):
    """TOML has no None: a setting that is None is left out of a file, and must come back as None."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if type(None) in typing.get_args(hints[field.name]):
            assert field.default is None, field.name


@pytest.mark.parametrize("cls", SETTINGS)
def test_every_setting_is_documented(cls):
    for field in dataclasses.fields(cls):
        assert field.name in cls.__doc__, field.name


def test_lists_become_tuples_so_that_nothing_can_be_changed():
    blocks = ["mamba1", "mamba1"]
    config = model(blocks=blocks, repeats=3)
    blocks.append("mamba1")
    assert config.blocks == ("mamba1", "mamba1")
    assert config.layers == ("mamba1",) * 6
    assert Mamba1Config(A_log_clamp=[-1, 2]).A_log_clamp == (-1.0, 2.0)


@pytest.mark.parametrize(
    "hidden_size, rank, expected", [(64, "auto", 4), (65, "auto", 5), (1, "auto", 1), (64, 7, 7)]
)
def test_the_rank_of_dt(hidden_size, rank, expected):
    assert Mamba1Config(time_step_rank=rank).rank(hidden_size) == expected


@pytest.mark.parametrize(
    "expand, hidden_size, expected", [(2, 3, 6), (1.5, 4, 6), (0.5, 2, 1), (1.15, 100, 115), (2.3, 10, 23)]
)
def test_the_inner_size(expand, hidden_size, expected):
    """1.15 * 100 is 114.99999999999999 to a computer, not to the person who wrote it."""
    inner = Mamba1Config(expand=expand).inner_size(hidden_size)
    assert (inner, type(inner)) == (expected, int)


@pytest.mark.parametrize("expand, hidden_size", [(1.5, 3), (0.1, 3), (0.25, 1), (2.001, 100)])
def test_an_inner_size_that_is_not_whole_is_refused(expand, hidden_size):
    message = f"expand {expand} times hidden_size {hidden_size} must be a whole number of at least 1"
    with pytest.raises(ValueError, match=message):
        model(hidden_size=hidden_size, mamba1=Mamba1Config(expand=expand))


NAN = float("nan")


@pytest.mark.parametrize(
    "cls, changes, message",
    [
        (Mamba1Config, {"state_size": 0}, "state_size must be a whole number of at least 1, got 0"),
        (Mamba1Config, {"conv_kernel": 2.0}, "conv_kernel must be a whole number of at least 1, got 2.0"),
        (Mamba1Config, {"state_size": True}, "state_size must be a whole number of at least 1, got True"),
        (Mamba1Config, {"time_step_rank": "foo"}, "time_step_rank must be a whole number .*, got 'foo'"),
        (Mamba1Config, {"time_step_rank": 0}, "time_step_rank must be a whole number .*, got 0"),
        (Mamba1Config, {"expand": 0}, "expand must be positive, got 0"),
        (Mamba1Config, {"expand": NAN}, "expand must be positive, got nan"),
        (Mamba1Config, {"dt_b_c_norm": "rms"}, "dt_b_c_norm must be None, 'plain' or 'learned', got 'rms'"),
        (Mamba1Config, {"dt_b_c_norm_eps": -1.0}, "dt_b_c_norm_eps must"),
        (Mamba1Config, {"discretization": "bilinear"}, "discretization must be 'euler' or 'zoh'"),
        (Mamba1Config, {"A_log_clamp": (2, 1)}, r"A_log_clamp must be \(low, high\) with low < high"),
        (Mamba1Config, {"A_log_clamp": (1, 1)}, r"A_log_clamp must be \(low, high\) with low < high"),
        (Mamba1Config, {"A_log_clamp": (1, 2, 3)}, r"A_log_clamp must be \(low, high\) with low < high"),
        (Mamba1Config, {"A_log_clamp": (1, "a")}, r"A_log_clamp must be \(low, high\) with low < high"),
        (Mamba1Config, {"A_log_clamp": 3}, r"A_log_clamp must be \(low, high\) with low < high"),
        (Mamba1Config, {"time_step_min": 0.2}, "time_step_min and time_step_max must be 0 < min <= max"),
        (Mamba1Config, {"time_step_min": 0.0}, "time_step_min and time_step_max must be 0 < min <= max"),
        (Mamba1Config, {"time_step_floor": -1.0}, "time_step_floor must"),
        (ModelConfig, {"vocab_size": 0}, "vocab_size must be a whole number of at least 1, got 0"),
        (ModelConfig, {"hidden_size": -3}, "hidden_size must be a whole number of at least 1, got -3"),
        (ModelConfig, {"repeats": 0}, "repeats must be a whole number of at least 1, got 0"),
        (ModelConfig, {"blocks": []}, r"blocks must be a list of at least one name, got \[\]"),
        (ModelConfig, {"blocks": "mamba1"}, "blocks must be a list of at least one name, got 'mamba1'"),
        (ModelConfig, {"blocks": ["mmaba1"]}, "unknown block 'mmaba1'; did you mean 'mamba1'?"),
        (ModelConfig, {"norm_eps": 0.0}, "norm_eps must be positive, got 0.0"),
        (OptimConfig, {"lr": 0.0}, "lr must be positive, got 0.0"),
        (OptimConfig, {"lr": float("inf")}, "lr must be positive, got inf"),
        (OptimConfig, {"lr": NAN}, "lr must be positive, got nan"),
        (OptimConfig, {"beta1": 1.0}, r"beta1 must be in \[0, 1\), got 1.0"),
        (OptimConfig, {"beta2": -0.1}, r"beta2 must be in \[0, 1\), got -0.1"),
        (OptimConfig, {"eps": 0.0}, "eps must be positive, got 0.0"),
        (OptimConfig, {"weight_decay": -1.0}, "weight_decay must not be negative, got -1.0"),
        (OptimConfig, {"warmup_steps": -1}, "warmup_steps must not be negative, got -1"),
        (OptimConfig, {"clip_norm": NAN}, "clip_norm must not be negative, got nan"),
        (OptimConfig, {"min_lr_ratio": 1.1}, r"min_lr_ratio must be in \[0, 1\], got 1.1"),
        (TrainConfig, {"steps": 3, "epochs": 1.0}, r"give steps or epochs, not both \(got 3 and 1.0\)"),
        (TrainConfig, {"steps": 0}, "steps must be a whole number of at least 1, got 0"),
        (TrainConfig, {"epochs": 0.0}, "epochs must be positive, got 0.0"),
        (TrainConfig, {"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        (TrainConfig, {"micro_batch_size": 0}, "micro_batch_size must be a whole number of at least 1"),
        (TrainConfig, {"max_seq_len": 0}, "max_seq_len must be a whole number of at least 1, got 0"),
        (TrainConfig, {"dtype": "flaot32"}, "dtype must be one of float32 here, got 'flaot32'"),
        (TrainConfig, {"activation_checkpointing": "some"}, "activation_checkpointing must be 'none'"),
        (TrainConfig, {"backend": "referense"}, "unknown backend 'referense'; did you mean 'reference'"),
        (TrainConfig, {"validation_fraction": 1.0}, "validation_fraction must be between 0 and 1, got 1.0"),
        (TrainConfig, {"seed": -1}, "seed must be a whole number from 0 to 2.63 - 1, got -1"),
        (TrainConfig, {"eval_every": -1}, "eval_every must not be negative, got -1"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_by_name(cls, changes, message):
    required = {"vocab_size": 3, "hidden_size": 2} if cls is ModelConfig else {}
    with pytest.raises(ValueError, match=f"^{message}"):
        cls(**{**required, **changes})


def test_nearest_names_one_or_all():
    assert nearest("hiden_size", ["vocab_size", "hidden_size"]) == "; did you mean 'hidden_size'?"
    assert nearest("zzz", ["vocab_size", "lr"]) == "; known: vocab_size, lr"
