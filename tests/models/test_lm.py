"""HybridLM: names, numbers from the formulas, and the equalities of SPEC.md 2."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from ssmith import HybridLM, LMState
from tests.models.tiny import (
    VARIANTS,
    V,
    everything,
    parameter_gradients,
    random_like,
    some_ids,
    state_tensors,
    tiny_config,
    tiny_model,
)
from tests.tolerances import assert_close

KINDS = {torch.float64: "float64 model", torch.float32: "float32 model"}


@pytest.fixture(params=[(torch.float64, "auto"), (torch.float32, "auto")], ids=["float64", "float32"])
def numbers(request):
    """(dtype and backend of a model, tolerance): float64 is the reference, float32 the kernels."""
    dtype, backend = request.param
    return {"dtype": dtype, "backend": backend}, KINDS[dtype]


LAYER = [
    "norm.weight", "mixer.A_log", "mixer.D", "mixer.in_proj.weight", "mixer.conv.weight", "mixer.conv.bias",
    "mixer.x_proj.weight", "mixer.dt_proj.weight", "mixer.dt_proj.bias", "mixer.out_proj.weight",
]  # fmt: skip


@pytest.mark.parametrize(
    "options, outside, extra, without",
    [
        ({}, ["final_norm.weight"], [], []),
        ({"final_norm": False}, [], [], []),
        ({"tie_embeddings": False}, ["final_norm.weight", "head.weight"], [], []),
        ({"head_bias": True}, ["final_norm.weight", "head.bias"], [], []),
        ({"mamba1": {"use_bias": True}}, ["final_norm.weight"], ["in_proj.bias", "out_proj.bias"], []),
        ({"mamba1": {"x_proj_bias": True}}, ["final_norm.weight"], ["x_proj.bias"], []),
        ({"mamba1": {"use_conv_bias": False}}, ["final_norm.weight"], [], ["conv.bias"]),
        ({"mamba1": {"dt_proj_bias": False}}, ["final_norm.weight"], [], ["dt_proj.bias"]),
        ({"mamba1": {"dt_b_c_norm": "plain"}}, ["final_norm.weight"], [], []),
        (
            {"mamba1": {"dt_b_c_norm": "learned"}},
            ["final_norm.weight"],
            ["dt_norm.weight", "b_norm.weight", "c_norm.weight"],
            [],
        ),
    ],
)
def test_parameter_names_are_those_of_the_contract(options, outside, extra, without):
    layer = {*LAYER, *(f"mixer.{e}" for e in extra)} - {f"mixer.{w}" for w in without}
    expected = {"embedding.weight", *outside, *(f"layers.{i}.{name}" for i in range(2) for name in layer)}
    model = HybridLM(tiny_config(**options))
    assert {name for name, _ in model.named_parameters()} == expected
    assert set(model.state_dict()) == expected, "what is saved is the parameters, a tied head not twice"


def test_shapes_of_parameters():
    from ssmith import shapes

    config = tiny_config("untied", repeats=1, hidden_size=5, mamba1={"expand": 2, "use_bias": True})
    assert shapes(HybridLM(config)) == {
        "embedding.weight": (V, 5), "head.weight": (V, 5), "head.bias": (V,),
        "layers.0.norm.weight": (5,), "layers.0.mixer.A_log": (10, 3), "layers.0.mixer.D": (10,),
        "layers.0.mixer.in_proj.weight": (20, 5), "layers.0.mixer.in_proj.bias": (20,),
        "layers.0.mixer.conv.weight": (10, 4), "layers.0.mixer.conv.bias": (10,),
        "layers.0.mixer.x_proj.weight": (8, 10),
        "layers.0.mixer.dt_proj.weight": (10, 2), "layers.0.mixer.dt_proj.bias": (10,),
        "layers.0.mixer.out_proj.weight": (5, 10), "layers.0.mixer.out_proj.bias": (5,),
    }  # fmt: skip


def silu(x):
    return x / (1 + np.exp(-x))


def numpy_rms(x, weight=1.0, eps=1e-5):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def numpy_mixer(p, x, config):
    """Mamba-1 for one sequence x (T, D), one token at a time, from figure 3 and algorithm 2 of the paper."""
    inner, rank, size = p["D"].shape[0], config.time_step_rank, config.state_size
    A = p["A_log"] if config.A_log_clamp is None else np.clip(p["A_log"], *config.A_log_clamp)
    A = -np.exp(A)
    past, h, out = np.zeros((config.conv_kernel, inner)), np.zeros((inner, size)), []
    for x_t in x:
        both = p["in_proj.weight"] @ x_t + p.get("in_proj.bias", 0)
        u, z = both[:inner], both[inner:]
        past = np.vstack([past[1:], u])
        u = silu((p["conv.weight"] * past.T).sum(1) + p.get("conv.bias", 0))
        low, B, C = np.split(p["x_proj.weight"] @ u + p.get("x_proj.bias", 0), [rank, rank + size])
        if config.dt_b_c_norm is not None:
            low, B, C = (
                numpy_rms(v, p.get(f"{n}.weight", 1.0), config.dt_b_c_norm_eps)
                for v, n in ((low, "dt_norm"), (B, "b_norm"), (C, "c_norm"))
            )
        dt = np.log1p(np.exp(p["dt_proj.weight"] @ low + p.get("dt_proj.bias", 0)))[:, None]
        weight = dt if config.discretization == "euler" else np.expm1(dt * A) / A
        h = np.exp(dt * A) * h + weight * B * u[:, None]
        y = (h @ C + p["D"] * u) * silu(z)
        out.append(p["out_proj.weight"] @ y + p.get("out_proj.bias", 0))
    return np.array(out), past[1:].T, h


def numpy_lm(model, ids):
    """(logits, states of every layer) for one row of ids."""
    config = model.config
    p = {n: x.detach().double().numpy() for n, x in model.named_parameters()}
    x, states = p["embedding.weight"][ids], []
    for i in range(len(config.layers)):
        prefix = f"layers.{i}.mixer."
        mixer = {n.removeprefix(prefix): v for n, v in p.items() if n.startswith(prefix)}
        normed = numpy_rms(x, p[f"layers.{i}.norm.weight"], config.norm_eps)
        y, conv, h = numpy_mixer(mixer, normed, config.mamba1)
        x = x + y
        states += [conv, h]
    if config.final_norm:
        x = numpy_rms(x, p["final_norm.weight"], config.norm_eps)
    head = p["embedding.weight" if config.tie_embeddings else "head.weight"]
    return x @ head.T + p.get("head.bias", 0), states


OPTIONS = [
    *VARIANTS,
    {"mamba1": {"A_log_clamp": (0.0, 0.9)}},
    {"mamba1": {"use_conv_bias": False, "dt_proj_bias": False}},
    {"mamba1": {"conv_kernel": 1, "state_size": 1, "time_step_rank": 1}},
    {"mamba1": {"expand": 0.5, "dt_b_c_norm": "learned", "dt_b_c_norm_eps": 0.3}},
    {"norm_eps": 0.5},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_the_papers_formulas_in_numpy(options):
    options = {"variant": options} if isinstance(options, str) else options
    model = tiny_model(**options)
    ids = some_ids(2, 7)
    out = model(ids)
    for row in range(2):
        logits, states = numpy_lm(model, ids[row].numpy())
        assert_close(out.logits[row], logits, "float64 model")
        assert_close([x[row] for x in state_tensors(out.state)], states, "float64 model")


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32_against_float64(variant):
    wide = tiny_model(variant)
    narrow = copy.deepcopy(wide).float()
    ids = some_ids(2, 17)
    expected, found = wide(ids, labels=ids), narrow(ids, labels=ids)
    assert found.logits.dtype == found.loss.dtype == torch.float32
    assert_close(found.logits, expected.logits, "float32 model")
    assert_close(found.loss, expected.loss, "float32 model")
    assert_close(
        parameter_gradients(narrow, found.loss), parameter_gradients(wide, expected.loss), "float32 model"
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("cuts", [[3, 6], [1] * 9], ids=["split", "one at a time"])
def test_the_whole_equals_its_parts_with_the_state_carried(variant, cuts, numbers):
    options, kind = numbers
    model = tiny_model(variant, **options)
    ids = some_ids(2, 9)
    whole = model(ids)
    parts, state = [], None
    for part in ids.split(cuts, 1):
        out = model(part, state=state)
        parts.append(out.logits)
        state = out.state
    found = everything(model, torch.cat(parts, 1), state)
    assert_close(found, everything(model, whole.logits, whole.state), kind)


def test_decoding_without_gradient_equals_the_whole(numbers):
    options, kind = numbers
    model = tiny_model(**options)
    ids = some_ids(3, 9)
    with torch.no_grad():
        whole, parts, state = model(ids), [], model.initial_state(3)
        for token in ids.split(1, 1):
            out = model(token, state=state)
            parts.append(out.logits)
            state = out.state
    assert_close(torch.cat(parts, 1), whole.logits, kind)
    assert_close(state_tensors(state), state_tensors(whole.state), kind)


def test_a_state_that_was_read_once_can_be_read_again(numbers):
    options, _ = numbers
    model = tiny_model(**options)
    ids = some_ids(2, 9)
    with torch.no_grad():
        state = model(ids[:, :4]).state
        before = [x.clone() for x in state_tensors(state)]
        for part in (ids[:, 4:], ids[:, 4:5]):
            first, second = model(part, state=state), model(part, state=state)
            assert torch.equal(first.logits, second.logits)
            assert all(map(torch.equal, before, state_tensors(state)))
            old = {x.untyped_storage().data_ptr() for x in state_tensors(state)}
            assert not old & {x.untyped_storage().data_ptr() for x in state_tensors(first.state)}


def test_a_batch_equals_its_rows_alone(numbers):
    options, kind = numbers
    model = tiny_model(**options)
    ids = some_ids(3, 7)
    batch = model(ids)
    rows = [model(row[None]) for row in ids]
    found = everything(model, torch.cat([r.logits for r in rows]), LMState.stack([r.state for r in rows]))
    assert_close(found, everything(model, batch.logits, batch.state), kind)


MASKS = {
    "left": [[0, 0, 0, 1, 1, 1, 1], [1] * 7, [0] * 6 + [1]],
    "right": [[1, 1, 1, 1, 0, 0, 0], [1] * 7, [1] + [0] * 6],
    "middle": [[1, 1, 0, 0, 1, 0, 1], [0, 1, 1, 1, 1, 1, 0], [1] * 7],
}


@pytest.mark.parametrize("side", MASKS)
@pytest.mark.parametrize("variant", ["plain", "zoh"])
def test_padding_equals_no_padding(side, variant, numbers):
    options, kind = numbers
    model = tiny_model(variant, **options)
    mask, ids = torch.tensor(MASKS[side]), some_ids(3, 7)
    before = model(some_ids(3, 2, seed=5)).state
    padded = model(ids, state=before, attention_mask=mask, labels=ids)
    weights = random_like(padded.logits) * mask[..., None]
    scalar = (padded.logits * weights).sum()
    rows, states, counted = 0, [], []
    for i in range(3):
        real = mask[i].bool()
        alone = model(ids[i, real][None], state=before.select([i]))
        assert_close(padded.logits[i, real], alone.logits[0], kind)
        assert padded.logits[i, ~real].count_nonzero() == 0
        rows = rows + (alone.logits[0] * weights[i, real]).sum()
        states.append(alone.state)
        if real.sum() > 1:
            counted.append(F.cross_entropy(alone.logits[0, :-1], ids[i, real][1:], reduction="none"))
    assert_close(state_tensors(padded.state), state_tensors(LMState.stack(states)), kind)
    loss = torch.cat(counted).mean()
    assert_close(padded.loss, loss, kind)
    assert_close(
        parameter_gradients(model, padded.loss + scalar), parameter_gradients(model, loss + rows), kind
    )


@pytest.mark.parametrize("side", MASKS)
def test_what_stands_in_the_pads_changes_no_bit(side, numbers):
    options, _ = numbers
    model = tiny_model(**options)
    mask, ids = torch.tensor(MASKS[side]), some_ids(3, 7)
    other = torch.where(mask.bool(), ids, (ids + 5) % V)
    assert not torch.equal(ids, other)
    results = []
    for x in (ids, other):
        out = model(x, attention_mask=mask, labels=x)
        results.append((out.logits, out.loss, state_tensors(out.state), parameter_gradients(model, out.loss)))
    (logits, loss, states, grads), (logits2, loss2, states2, grads2) = results
    assert torch.equal(logits, logits2)
    assert torch.equal(loss, loss2)
    assert all(map(torch.equal, states, states2))
    assert all(torch.equal(grads[n], grads2[n]) for n in grads)


@pytest.mark.parametrize("pad", [-1, -100, V, 10**6])
def test_pads_may_be_no_token_at_all(pad):
    """SPEC.md 2: whatever ids stand in the pads; many tokenizers pad with an id of their own."""
    model = tiny_model()
    mask, ids = torch.tensor(MASKS["left"]), some_ids(3, 7)
    padded = torch.where(mask.bool(), ids, pad)
    found = model(padded, attention_mask=mask, labels=padded)
    expected = model(ids, attention_mask=mask, labels=ids)
    assert torch.equal(found.logits, expected.logits)
    assert torch.equal(found.loss, expected.loss)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_a_mask_of_ones_changes_nothing(dtype):
    model, ids = tiny_model(), some_ids(3, 7)
    masked, plain = model(ids, attention_mask=torch.ones(3, 7, dtype=dtype)), model(ids)
    assert torch.equal(masked.logits, plain.logits)
    assert masked.state.rows == 3


@pytest.mark.parametrize("variant", ["plain", "zoh"])
def test_documents_packed_equal_documents_alone(variant, numbers):
    options, kind = numbers
    model = tiny_model(variant, **options)
    borders, ids = [0, 1, 3, 9, 16], some_ids(1, 16)
    before = model(some_ids(4, 2, seed=5)).state
    packed = model(ids, state=before, cu_seqlens=torch.tensor(borders, dtype=torch.int32))
    spans = list(pairwise(borders))
    alone = [model(ids[:, a:b], state=before.select([i])) for i, (a, b) in enumerate(spans)]
    logits, state = torch.cat([x.logits for x in alone], 1), LMState.stack([x.state for x in alone])
    assert packed.state.rows == 4
    assert_close(everything(model, packed.logits, packed.state), everything(model, logits, state), kind)


def test_a_change_in_one_document_moves_no_other(numbers):
    options, _ = numbers
    model = tiny_model(**options)
    ids, cu_seqlens = some_ids(1, 11), torch.tensor([0, 3, 4, 11], dtype=torch.int32)
    changed = ids.clone()
    changed[0, 3] = (changed[0, 3] + 1) % V
    a, b = model(ids, cu_seqlens=cu_seqlens), model(changed, cu_seqlens=cu_seqlens)
    kept = [0, 1, 2, *range(4, 11)]
    assert torch.equal(a.logits[:, kept], b.logits[:, kept])
    assert (a.logits[:, 3] != b.logits[:, 3]).all()
    for x, y in zip(state_tensors(a.state), state_tensors(b.state), strict=True):
        assert torch.equal(x[[0, 2]], y[[0, 2]])
        assert not torch.equal(x[1], y[1])


def test_no_token_sees_a_later_one(numbers):
    options, _ = numbers
    model, ids = tiny_model(**options), some_ids(1, 9)
    changed = ids.clone()
    changed[0, 5] = (changed[0, 5] + 1) % V
    a, b = model(ids).logits, model(changed).logits
    assert torch.equal(a[:, :5], b[:, :5])
    assert (a[:, 5:] != b[:, 5:]).any(-1).all()


def test_training_mode_equals_evaluation_mode():
    model, ids = tiny_model(), some_ids(2, 7)
    assert torch.equal(model.train()(ids).logits, model.eval()(ids).logits)


@pytest.mark.parametrize("variant", ["plain", "untied"])
def test_the_loss_is_the_mean_cross_entropy_of_the_counted_targets(variant):
    model, ids, targets = tiny_model(variant), some_ids(3, 7), some_ids(3, 7, seed=2)
    targets[0, :5] = -100
    targets[2] = -100
    out = model(ids, targets=targets)
    expected = F.cross_entropy(out.logits.reshape(-1, V), targets.reshape(-1))
    assert_close(out.loss, expected, "float64 model")
    assert torch.equal(out.loss, out.cross_entropy)
    assert_close(parameter_gradients(model, out.loss), parameter_gradients(model, expected), "float64 model")
    quiet = model(ids, targets=targets, logits=False)
    assert torch.equal(quiet.loss, out.loss)
    assert quiet.logits is None
    assert model(ids).loss is None
    assert model(ids).cross_entropy is None


def test_labels_are_targets_one_position_earlier():
    model, ids = tiny_model(), some_ids(2, 7)
    labels = ids.clone()
    labels[0, 3] = -100
    targets = torch.full_like(ids, -100)
    targets[:, :-1] = labels[:, 1:]
    assert torch.equal(model(ids, labels=labels).loss, model(ids, targets=targets).loss)
    assert torch.equal(labels, torch.where(labels == -100, -100, ids)), "labels must not be changed"
    assert torch.equal(model(ids.int(), labels=labels.int()).loss, model(ids, targets=targets).loss)


def test_labels_do_not_cross_the_border_of_a_document():
    model, ids = tiny_model(), some_ids(1, 9)
    cu_seqlens = torch.tensor([0, 1, 4, 9], dtype=torch.int32)
    targets = torch.full_like(ids, -100)
    for start, end in ((0, 1), (1, 4), (4, 9)):
        targets[:, start : end - 1] = ids[:, start + 1 : end]
    assert (targets != -100).sum() == 6
    found = model(ids, labels=ids, cu_seqlens=cu_seqlens).loss
    assert torch.equal(found, model(ids, targets=targets, cu_seqlens=cu_seqlens).loss)


def test_labels_skip_padding_in_the_middle_and_targets_stay_where_they_are():
    model, ids = tiny_model(), some_ids(1, 6)
    mask = torch.tensor([[1, 0, 1, 1, 0, 1]])
    real = mask[0].bool()
    assert_close(
        model(ids, labels=ids, attention_mask=mask).loss,
        model(ids[:, real], labels=ids[:, real]).loss,
        "float64 model",
    )
    targets = some_ids(1, 6, seed=3)
    found = model(ids, targets=targets, attention_mask=mask).loss
    assert_close(found, model(ids[:, real], targets=targets[:, real]).loss, "float64 model")


def test_a_deep_copy_is_independent_and_equal():
    model, ids = tiny_model(), some_ids(2, 5)
    expected = model(ids).logits
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for p in copied.parameters():
            p.zero_()
    assert torch.equal(model(ids).logits, expected)
    assert torch.equal(copy.deepcopy(model)(ids).logits, expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_state_dict_makes_the_same_model(variant):
    model, other, ids = tiny_model(variant), tiny_model(variant, seed=9), some_ids(2, 5)
    assert not torch.equal(model(ids).logits, other(ids).logits)
    other.load_state_dict({n: x.clone() for n, x in model.state_dict().items()}, strict=True)
    assert torch.equal(model(ids).logits, other(ids).logits)


def test_the_seed_decides_the_initial_weights():
    made = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        made.append(HybridLM(tiny_config()).state_dict())
    assert all(torch.equal(made[0][n], made[1][n]) for n in made[0])
    assert not torch.equal(made[0]["embedding.weight"], made[2]["embedding.weight"])


def test_a_new_model_is_float32_on_the_cpu_and_every_parameter_trains():
    model = HybridLM(tiny_config("untied"))
    assert {(p.dtype, p.device.type, p.requires_grad) for p in model.parameters()} == {
        (torch.float32, "cpu", True)
    }


def test_set_backend_reaches_every_operator_and_refuses_unknown_names():
    model, ids = tiny_model(), some_ids(1, 3)
    model.set_backend("reference")
    assert {m.backend for m in model.modules() if hasattr(m, "backend")} == {"reference"}
    with pytest.raises(ValueError, match=r"^unknown backend 'cuda'; choose one of auto, cpu, reference$"):
        model.set_backend("cuda")
    assert torch.equal(model(ids).logits, tiny_model()(ids).logits)


def test_a_backend_that_cannot_serve_raises_and_nothing_else_is_taken_instead():
    model = tiny_model(backend="cpu")  # float64: the kernels are float32's
    with pytest.raises(ValueError, match="'cpu'"):
        model(some_ids(1, 3))


def test_the_backend_cpu_serves_a_float32_model():
    """A backend that an operator lacks must not make the model's own setting useless."""
    model, ids = tiny_model(dtype=torch.float32), some_ids(2, 5)
    expected = model(ids).logits
    model.set_backend("cpu")
    assert_close(model(ids).logits, expected, "float32 model")


@pytest.mark.parametrize("options", [{"bogus": 1}, {"input_ids": some_ids(1, 3)}, {"use_cache": True}])
def test_an_unknown_keyword_is_a_type_error(options):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(options))}'"):
        tiny_model()(some_ids(1, 3), **options)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("task", ["logits", "loss"])
def test_compiled_in_one_graph_equals_eager(task, numbers):
    options, kind = numbers
    model, ids = tiny_model(**options, repeats=1), some_ids(2, 2)

    def run(ids):
        out = model(ids) if task == "logits" else model(ids, targets=ids, logits=False)
        return getattr(out, task)

    torch._dynamo.reset()
    found = torch.compile(run, fullgraph=True, backend="aot_eager")(ids)
    assert_close(found, run(ids), kind)
    grads = [parameter_gradients(model, (x * random_like(x)).sum()) for x in (found, run(ids))]
    assert_close(*grads, kind)
