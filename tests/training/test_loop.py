"""The training loop: exact accumulation, same seed same bits, what is recorded, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import ssmith
from ssmith.data import Batch, BatchLoader, Document, byte_tokenizer, pack_documents
from ssmith.models import HybridLM
from ssmith.training.loop import TrainReport, accumulate_gradients
from ssmith.training.optim import NonFiniteGradientError
from ssmith.training.reporter import Reporter

MODEL = ssmith.ModelConfig(vocab_size=257, hidden_size=16, repeats=2)
TEXTS = [Document(f"A text, number {i}, of some {i * i} words; it is not long.", f"{i}") for i in range(8)]


def settings(**changes: object) -> ssmith.TrainConfig:
    values = {"steps": 4, "batch_size": 3, "max_seq_len": 33, "optim": ssmith.OptimConfig(warmup_steps=2)}
    return ssmith.TrainConfig(**(values | changes))


def trained(**changes: object) -> tuple[HybridLM, TrainReport]:
    torch.manual_seed(5)
    model = HybridLM(MODEL)
    return model, ssmith.train(model, TEXTS, settings(**changes))


@pytest.mark.parametrize("micro_batch_size", [1, 2, 3, 5])
def test_accumulation_is_weighted_by_tokens(micro_batch_size: int) -> None:
    """However a batch is cut, loss and gradients are those of the whole, though its rows count unequally."""
    torch.manual_seed(0)
    model = HybridLM(MODEL).double()
    ids, targets = torch.randint(0, 257, (5, 9)), torch.randint(0, 257, (5, 9))
    targets[1, 3:] = -100
    targets[4] = -100
    batch = Batch(ids, targets, int((targets >= 0).sum()), 0.0)
    loss = model(ids, targets=targets).loss
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    total = accumulate_gradients(model, batch, micro_batch_size)
    assert total == pytest.approx(float(loss.detach()), rel=1e-13)
    for (name, p), gradient in zip(model.named_parameters(), wanted, strict=True):
        error = (p.grad - gradient).norm() / gradient.norm()
        assert error < 1e-12, (name, float(error))


def test_same_seed_same_bits_and_another_seed_others() -> None:
    first, report = trained(seed=3)
    again, same = trained(seed=3)
    other, _ = trained(seed=4)
    assert report.losses == same.losses
    for (name, a), b in zip(first.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_settings_make_the_model_from_the_seed(tmp_path: Path) -> None:
    weights = []
    for i in range(2):
        torch.manual_seed(i)  # whatever was drawn before does not matter
        ssmith.train(MODEL, TEXTS, settings(out=str(tmp_path / f"{i}")))
        weights.append(ssmith.load(tmp_path / f"{i}").state_dict())
    assert all(torch.equal(a, b) for a, b in zip(weights[0].values(), weights[1].values(), strict=True))


def test_learns() -> None:
    _, report = trained(steps=60, optim=ssmith.OptimConfig(lr=1e-2, warmup_steps=5))
    assert report.losses[0] == pytest.approx(5.55, abs=0.1)  # log 257 at the start
    assert report.losses[-1] < 3.0
    assert report.validation.loss < 3.5


def test_an_epoch_learns_from_every_token_once() -> None:
    seen: list[int] = []

    class Watch(Reporter):
        def step(self, row, total) -> None:
            seen.append(int(row["train/tokens"]))

    report = ssmith.train(MODEL, TEXTS, settings(steps=None, epochs=1), reporter=Watch())
    held_out = 1
    tokens = sum(len(t.text) + 1 for t in TEXTS) - 1
    kept_out = report.validation.tokens + held_out  # its bytes, and its end-of-text
    assert report.tokens == seen[-1] == tokens - kept_out
    loader = BatchLoader(pack_documents(TEXTS, byte_tokenizer(), 33), 3, 0)
    assert loader.tokens_per_epoch == tokens


def test_metrics_rows_and_folder(tmp_path: Path) -> None:
    out = tmp_path / "run"
    _, report = trained(out=str(out), eval_every=2, micro_batch_size=2)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [1, 2, 3, 4]
    assert tuple(r["train/loss"] for r in rows) == report.losses
    assert ["val/bpb" in r for r in rows] == [False, True, False, True]
    names = "train/loss train/lr train/grad_norm train/tokens_per_second memory/peak_gib"
    assert all(set(names.split()) <= r.keys() for r in rows)
    assert rows[-1]["val/loss"] == report.validation.loss
    files = {p.name for p in out.iterdir()}
    wanted = "run.toml metrics.jsonl config.json model.safetensors tokenizer.json generation_config.json"
    assert {*wanted.split(), "README.md"} <= files
    assert not [n for n in files if "partial" in n]
    recipe = ssmith.config.load_recipe(str(out / "run.toml"))
    assert recipe.model == MODEL
    assert recipe.train == settings(out=str(out), eval_every=2, micro_batch_size=2)


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep me")
    with pytest.raises(ValueError, match="not empty: give another --out"):
        trained(out=str(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]
    with pytest.raises(ValueError, match="is a file: give another --out"):
        trained(out=str(tmp_path / "mine.txt"))


def test_a_loss_that_is_not_finite_stops_before_any_update() -> None:
    torch.manual_seed(0)
    model = HybridLM(MODEL)
    with torch.no_grad():
        model.layers[1].norm.weight[3] = float("nan")
    before = {n: p.clone() for n, p in model.state_dict().items()}
    with pytest.raises(
        NonFiniteGradientError, match=r"step 1: the loss is nan; the weight layers\.1\.norm\.weight is not"
    ):
        ssmith.train(model, TEXTS, settings())
    for name, p in model.state_dict().items():
        assert torch.equal(p.nan_to_num(7.0), before[name].nan_to_num(7.0)), name


def test_a_gradient_that_is_not_finite_names_step_and_parameter() -> None:
    torch.manual_seed(0)
    model = HybridLM(MODEL)
    calls = []
    hooked = model.layers[1].mixer.D
    hooked.register_hook(lambda g: g * float("inf") if len(calls) == 2 else calls.append(1))
    with pytest.raises(NonFiniteGradientError, match=r"step 3: the gradient of layers\.1\.mixer\.D"):
        ssmith.train(model, TEXTS, settings())


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused() -> None:
    small = ssmith.ModelConfig(vocab_size=256, hidden_size=16)
    with pytest.raises(ValueError, match=r"257 ids, the model's vocabulary only 256"):
        ssmith.train(small, TEXTS, settings())


def test_checkpointing_of_the_settings_acts_and_changes_no_bit() -> None:
    plain, _ = trained()
    checkpointed, _ = trained(activation_checkpointing="full")
    assert (plain.activation_checkpointing, checkpointed.activation_checkpointing) == ("none", "full")
    for a, b in zip(plain.parameters(), checkpointed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_texts_are_documents_and_other_arguments_are_named() -> None:
    texts = [d.text for d in TEXTS]
    report = ssmith.train(MODEL, texts, settings(seed=1))
    assert report.losses == ssmith.train(MODEL, TEXTS, settings(seed=1)).losses
    with pytest.raises(ValueError, match="data must be a path, or a list of texts or Documents, got list"):
        ssmith.train(MODEL, [3], settings())
    with pytest.raises(
        ValueError, match="train takes a HybridLM or a ModelConfig, and a TrainConfig; got str"
    ):
        ssmith.train("tiny", TEXTS, settings())
    with pytest.raises(ValueError, match="got ModelConfig and dict"):
        ssmith.train(MODEL, TEXTS, {"steps": 1})
