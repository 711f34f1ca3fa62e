import dataclasses
import tomllib

import pytest

from ssmith.config import (
    Mamba1Config,
    ModelConfig,
    OptimConfig,
    Recipe,
    TrainConfig,
    from_dict,
    load_recipe,
    merge,
    recipe_names,
    to_dict,
    to_toml,
)

MODEL = {"vocab_size": 257, "hidden_size": 64}


@pytest.mark.parametrize(
    "values, message",
    [
        ({"hiden_size": 3}, "unknown setting 'hiden_size'; did you mean 'hidden_size'?"),
        ({"zzz": 3}, "unknown setting 'zzz'; known: vocab_size, hidden_size, blocks"),
        ({"mamba1": {"stat_size": 3}}, "unknown setting 'mamba1.stat_size'; did you mean 'state_size'?"),
        ({"mamba1": 3}, "setting 'mamba1' must be a table of settings, got 3"),
        ({"vocab_size": "257"}, "setting 'vocab_size' must be int, got '257'"),
        ({"vocab_size": 257.0}, "setting 'vocab_size' must be int, got 257.0"),
        ({"vocab_size": True}, "setting 'vocab_size' must be int, got True"),
        ({"vocab_size": None}, "setting 'vocab_size' must be int, got None"),
        ({"norm_eps": "small"}, "setting 'norm_eps' must be float, got 'small'"),
        ({"norm_eps": True}, "setting 'norm_eps' must be float, got True"),
        ({"tie_embeddings": 1}, "setting 'tie_embeddings' must be bool, got 1"),
        ({"blocks": "mamba1"}, "setting 'blocks' must be a list, got 'mamba1'"),
        ({"mamba1": {"dt_b_c_norm": 1}}, "setting 'mamba1.dt_b_c_norm' must be str, got 1"),
        ({"mamba1": {"A_log_clamp": 1}}, "setting 'mamba1.A_log_clamp' must be a list, got 1"),
        ({"mamba1": {"state_size": 0}}, ".*state_size must be a whole number of at least 1, got 0"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(values, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        from_dict(ModelConfig, {**MODEL, **values})


def test_a_setting_deep_inside_is_named_with_its_whole_path():
    with pytest.raises(ValueError, match=r"unknown setting 'train.optim.lrr'; did you mean 'lr'?"):
        from_dict(Recipe, {"model": MODEL, "train": {"optim": {"lrr": 1.0}}})


@pytest.mark.parametrize(
    "cls, values, missing",
    [
        (ModelConfig, {"vocab_size": 3}, "hidden_size"),
        (Recipe, {}, "model"),
        (Recipe, {"model": {"vocab_size": 3}}, "model.hidden_size"),
    ],
)
def test_what_is_missing_is_named(cls, values, missing):
    with pytest.raises(ValueError, match=f"^missing setting '{missing}'$"):
        from_dict(cls, values)


def test_a_whole_number_may_stand_for_a_float():
    expand = from_dict(Mamba1Config, {"expand": 2}).expand
    assert (expand, type(expand)) == (2.0, float)


@pytest.mark.parametrize("rank", ["auto", 3])
def test_a_setting_of_two_types(rank):
    assert from_dict(Mamba1Config, {"time_step_rank": rank}).time_step_rank == rank


def full_recipe():
    return Recipe(
        model=ModelConfig(
            vocab_size=11, hidden_size=6, blocks=["mamba1", "mamba1"], repeats=3, tie_embeddings=False,
            head_bias=True, final_norm=False, norm_eps=1e-6,
            mamba1=Mamba1Config(
                state_size=3, conv_kernel=2, expand=1.5, time_step_rank=2, use_bias=True, use_conv_bias=False,
                x_proj_bias=True, dt_proj_bias=False, dt_b_c_norm="learned", dt_b_c_norm_eps=1e-3,
                A_log_clamp=(-4.5, 2.0), discretization="zoh", time_step_min=0.01, time_step_max=0.2,
                time_step_floor=0.001,
            ),
        ),
        train=TrainConfig(
            out="run äö", steps=7, batch_size=3, micro_batch_size=2, max_seq_len=5, seed=9,
            activation_checkpointing="full", backend="reference", eval_every=4, log_every=2,
            validation_fraction=0.25,
            optim=OptimConfig(
                lr=0.5, beta1=0.1, beta2=0.2, eps=1e-3, weight_decay=0.3, warmup_steps=6, min_lr_ratio=0.4,
                clip_norm=0.0,
            ),
        ),
        data="text.txt",
    )  # fmt: skip


def test_the_full_recipe_has_no_default_left():
    """Else the round trip below would not see a setting that gets lost."""

    def differs(settings, default):
        for field in dataclasses.fields(settings):
            value, other = getattr(settings, field.name), getattr(default, field.name)
            if dataclasses.is_dataclass(value):
                differs(value, other)
            elif field.name not in ("vocab_size", "hidden_size", "epochs", "dtype"):
                assert value != other, field.name

    differs(full_recipe(), Recipe(model=ModelConfig(vocab_size=11, hidden_size=6)))


@pytest.mark.parametrize("recipe", [full_recipe(), Recipe(model=ModelConfig(**MODEL))])
def test_settings_come_back_from_dictionaries_and_from_toml(recipe):
    assert from_dict(Recipe, to_dict(recipe)) == recipe
    assert from_dict(Recipe, tomllib.loads(to_toml(recipe))) == recipe


def test_dictionaries_hold_plain_values_only():
    def plain(value):
        if isinstance(value, dict):
            return all(isinstance(k, str) and plain(v) for k, v in value.items())
        if isinstance(value, list):
            return all(map(plain, value))
        return value is None or type(value) in (int, float, bool, str)

    assert plain(to_dict(full_recipe()))
    assert to_dict(full_recipe())["model"]["mamba1"]["A_log_clamp"] == [-4.5, 2.0]


def test_merge_lays_changes_over_and_changes_nothing():
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": [1], "f": 5}
    changes = {"a": {"c": {"d": 3, "x": 4}}, "e": [2, 3], "f": {"g": 6}}
    assert merge(base, changes) == {"a": {"b": 1, "c": {"d": 3, "x": 4}}, "e": [2, 3], "f": {"g": 6}}
    assert base == {"a": {"b": 1, "c": {"d": 2}}, "e": [1], "f": 5}
    assert changes == {"a": {"c": {"d": 3, "x": 4}}, "e": [2, 3], "f": {"g": 6}}
    assert merge({}, {}) == {}


def test_recipes_ship():
    assert len(recipe_names()) >= 1


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_that_ships_loads_and_comes_back(name):
    recipe = load_recipe(name)
    assert isinstance(recipe, Recipe)
    assert from_dict(Recipe, tomllib.loads(to_toml(recipe))) == recipe


def test_flags_are_laid_over_the_file_which_is_laid_over_the_defaults(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text('data = "a"\n[model]\nvocab_size = 3\nhidden_size = 4\n[train]\nseed = 1\nsteps = 2\n')
    recipe = load_recipe(str(path), {"train": {"seed": 5}, "model": {"mamba1": {"state_size": 7}}})
    assert recipe == Recipe(
        data="a",
        model=ModelConfig(vocab_size=3, hidden_size=4, mamba1=Mamba1Config(state_size=7)),
        train=TrainConfig(seed=5, steps=2),
    )


def test_recipes_that_are_not_there_or_not_toml(tmp_path):
    with pytest.raises(ValueError, match="there is no recipe 'no-such-recipe'; "):
        load_recipe("no-such-recipe")
    with pytest.raises(ValueError, match=r"there is no recipe file .*missing.toml"):
        load_recipe(str(tmp_path / "missing.toml"))
    broken = tmp_path / "broken.toml"
    broken.write_text("[model\n")
    with pytest.raises(ValueError, match=r"broken.toml is not a TOML file: .*line 1"):
        load_recipe(str(broken))
    broken.write_bytes(b"a = '\xff'\n")
    with pytest.raises(ValueError, match=r"broken.toml is not a TOML file"):
        load_recipe(str(broken))
