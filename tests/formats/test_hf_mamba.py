"""transformers' MambaForCausalLM is the judge: same logits, same gradients, same folders, both ways."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, MambaConfig, MambaForCausalLM
from transformers.utils import logging

import ssmith
from ssmith.data import byte_tokenizer
from ssmith.formats.hf.families.mamba import weights_in
from ssmith.models import HybridLM

logging.disable_progress_bar()
logging.set_verbosity_error()

VARIANTS = {
    "plain": {},
    "biases": {"use_bias": True, "use_conv_bias": False},
    "untied": {"tie_word_embeddings": False, "conv_kernel": 3, "expand": 1, "time_step_rank": 5},
    "odd": {"hidden_size": 17, "state_size": 3, "vocab_size": 31, "layer_norm_epsilon": 1e-3},
}


def judge(**changes: object) -> MambaForCausalLM:
    """A random model of transformers, every weight moved away from its initial value."""
    torch.manual_seed(len(changes))
    sizes = {"vocab_size": 61, "hidden_size": 24, "num_hidden_layers": 2, "state_size": 7}
    model = MambaForCausalLM(MambaConfig(**(sizes | changes)))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.05)
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_and_gradients_of_a_folder_transformers_wrote(variant: str, tmp_path: Path) -> None:
    theirs = judge(**VARIANTS[variant])
    theirs.save_pretrained(tmp_path)
    ours = ssmith.load(tmp_path)
    ids = torch.randint(0, theirs.config.vocab_size, (2, 19))
    out = theirs(ids, labels=ids)
    out.loss.backward()
    assert float((ours(ids).logits - out.logits).detach().abs().max()) < 1e-5
    loss, gradients = ssmith.gradients(ours, ids, labels=ids)
    assert abs(float(loss - out.loss.detach())) < 1e-5
    wanted = weights_in({n: p.grad for n, p in theirs.named_parameters()}, ours.config)
    assert wanted.keys() == gradients.keys()
    for name, gradient in gradients.items():
        error = (gradient - wanted[name]).norm() / wanted[name].norm()
        assert float(error) < 5e-6, (name, float(error))


@pytest.mark.parametrize("variant", VARIANTS)
def test_transformers_loads_what_we_wrote(variant: str, tmp_path: Path) -> None:
    theirs = judge(**VARIANTS[variant])
    theirs.save_pretrained(tmp_path / "theirs")
    ours = ssmith.load(tmp_path / "theirs")
    ssmith.save(ours, tmp_path / "ours")
    back, info = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert type(back) is MambaForCausalLM
    assert not any(info.values()), info
    state = theirs.state_dict()
    assert back.state_dict().keys() == state.keys()
    for name, weight in back.state_dict().items():
        assert torch.equal(weight, state[name]), name
    for name in ("layer_norm_epsilon", "conv_kernel", "expand", "time_step_rank", "tie_word_embeddings"):
        assert getattr(back.config, name) == getattr(theirs.config, name), name


def test_greedy_text_is_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ours = HybridLM(ssmith.ModelConfig(vocab_size=257, hidden_size=32, repeats=2))
    with torch.no_grad():
        for p in ours.parameters():
            p.mul_(1.5)
    ours.tokenizer = byte_tokenizer()
    ssmith.save(ours, tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer("It was é", return_tensors="pt").input_ids
    assert ids[0].tolist() == list("It was é".encode())
    new = theirs.generate(ids, max_new_tokens=24, do_sample=False)[0, ids.shape[1] :]
    assert ours.generate(ids[0], max_tokens=24).tolist() == new.tolist()


def test_settings_that_matter_and_are_not_handled_are_refused(tmp_path: Path) -> None:
    judge(hidden_act="relu").save_pretrained(tmp_path / "relu")
    with pytest.raises(ValueError, match=r"config\.json: hidden_act 'relu' is not handled"):
        ssmith.load(tmp_path / "relu")


def test_a_published_folder(tmp_path: Path) -> None:
    """As state-spaces/mamba-*-hf: the original repository's settings too, and its name of the embedding."""
    theirs = judge()
    theirs.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    inner = values["intermediate_size"]
    values |= {"d_model": 24, "d_inner": inner, "n_layer": 2, "rms_norm": True, "fused_add_norm": True}
    values |= {"ssm_cfg": {}, "pad_vocab_size_multiple": 8, "torch_dtype": "float32"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    weights = load_file(tmp_path / "model.safetensors")
    weights["backbone.embedding.weight"] = weights.pop("backbone.embeddings.weight")
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    ids = torch.randint(0, 61, (1, 7))
    with torch.no_grad():
        assert float((ssmith.load(tmp_path)(ids).logits - theirs(ids).logits).abs().max()) < 1e-5


def test_without_a_tokenizer_no_id_ends_a_text(tmp_path: Path) -> None:
    """Left out, transformers would take id 0 for the end of text."""
    ssmith.save(HybridLM(ssmith.ModelConfig(vocab_size=5, hidden_size=8)), tmp_path)
    back = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert back.generation_config.eos_token_id is None
    assert back.config.eos_token_id is None
