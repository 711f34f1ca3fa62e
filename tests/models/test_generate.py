"""generate and stream, with a real model for numbers and a counting one for texts."""

import pytest
import torch

from ssmith import HybridLM, LMState
from ssmith.models import generate as module
from tests.models.tiny import V, random_like, some_ids, tiny_config, tiny_model

EOS = 10
LETTERS = "abcdefghij"


class HalvesDecoder:
    """Gives "i" out only when the next token or the end has come, as half a character would be."""

    def __init__(self):
        self.held = ""

    def push(self, token):
        text = self.held + LETTERS[token]
        self.held = "i" if text.endswith("i") else ""
        return text.removesuffix("i")

    def flush(self):
        text, self.held = self.held, ""
        return text


class LetterTokenizer:
    eos_token_id, vocab_size = EOS, V

    def encode(self, text):
        return [LETTERS.index(c) for c in text]

    def decode_stream(self):
        return HalvesDecoder()


@pytest.fixture
def model():
    """Of a seed with which greedy writing repeats itself little."""
    model = tiny_model("untied", torch.float32, seed=30).requires_grad_(False)
    model.head.weight.copy_(2 * random_like(model.head.weight.double(), seed=18))
    return model


@pytest.fixture
def counting():
    """After each token comes the next: a b c d e f g h i j, then end of text, then a again."""
    config = tiny_config("untied", repeats=1, hidden_size=V, mamba1={"state_size": 1})
    counting = HybridLM(config)
    with torch.no_grad():
        counting.layers[0].mixer.out_proj.weight.zero_()
        counting.embedding.weight.copy_(torch.eye(V))
        counting.head.weight.copy_(torch.eye(V).roll(1, 0) * 9)
    counting.tokenizer = LetterTokenizer()
    return counting


def argmax_loop(model, prompt, tokens):
    ids = list(prompt)
    for _ in range(tokens):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


PROMPTS = [[3], [1, 2, 3, 4, 5, 6, 7], [9, 9], [0, 5, 10]]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_equals_the_argmax_of_the_whole_again_and_again(model, prompt):
    expected = argmax_loop(model, prompt, 8)
    assert len(set(expected)) > 2, "a model that repeats itself tests little"
    assert model.generate(prompt, max_tokens=8) == expected


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0, "seed": 3}, {"temperature": 2.0, "top_k": 4, "seed": 1}]
)
def test_prompts_in_a_batch_get_what_they_get_alone(model, options):
    batch = model.generate(PROMPTS, max_tokens=9, **options)
    assert batch == [model.generate(p, max_tokens=9, **options) for p in PROMPTS]
    assert len({tuple(x) for x in batch}) == len(PROMPTS)


def test_the_seed_makes_sampling_repeatable(model):
    def sample(seed, **options):
        return model.generate([1, 2], max_tokens=20, temperature=1.5, seed=seed, **options)

    assert sample(1) == sample(1)
    assert sample(1) != sample(2)
    assert sample(None) != sample(None)
    assert sample(1, top_k=1) == model.generate([1, 2], max_tokens=20)


def test_generation_leaves_gradients_random_numbers_and_weights_alone(model):
    model.requires_grad_(True)
    before, weights = torch.get_rng_state(), [p.clone() for p in model.parameters()]
    model.generate([1, 2], max_tokens=3, temperature=1.0)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()
    assert all(p.grad is None for p in model.parameters())
    assert all(map(torch.equal, weights, model.parameters()))


@pytest.mark.parametrize("segment", [1, 3, 6, 7])
def test_a_prompt_longer_than_a_segment(model, segment, monkeypatch):
    expected = model.generate(PROMPTS[1], max_tokens=9)
    lengths = []
    model.register_forward_pre_hook(lambda m, args: lengths.append(args[0].shape[1]))
    monkeypatch.setattr(module, "PROMPT_SEGMENT", segment)
    assert model.generate(PROMPTS[1], max_tokens=9) == expected
    assert max(lengths) == min(segment, 6)
    assert sum(lengths[:-9]) == 6, "all of the prompt but its last token, once"


def test_each_token_is_read_once_and_no_loss_or_gradient_is_made(model):
    calls = []

    def watch(m, args, kwargs, out):
        calls.append((tuple(args[0].shape), out.state.layers[0].ssm.requires_grad))

    model.requires_grad_(True).register_forward_hook(watch, with_kwargs=True)
    model.generate([[1, 2, 3], [4]], max_tokens=4)
    assert calls == [((1, 2), False)] + [((2, 1), False)] * 4


def test_tensors_in_tensors_out(model):
    expected = model.generate([1, 2, 3], max_tokens=5)
    row = model.generate(torch.tensor([1, 2, 3], dtype=torch.int32), max_tokens=5)
    assert (row.dtype, row.tolist()) == (torch.int32, expected)
    batch = model.generate(torch.tensor([[1, 2, 3], [3, 2, 1]]), max_tokens=5)
    assert (batch.dtype, batch.shape) == (torch.int64, (2, 5))
    assert batch[0].tolist() == expected
    listed = model.generate([torch.tensor([1, 2, 3]), torch.tensor([3])], max_tokens=5)
    assert listed[0] == expected


def test_a_batch_in_which_one_row_ends_early_is_filled_up_with_end_of_text(counting):
    out = counting.generate(torch.tensor([[7], [9], [1]]), max_tokens=3)
    assert out.tolist() == [[8, 9, EOS], [EOS, EOS, EOS], [2, 3, 4]]
    assert counting.generate([[7], [9], [1]], max_tokens=9) == [
        [8, 9, EOS],
        [EOS],
        [2, 3, 4, 5, 6, 7, 8, 9, EOS],
    ]


def test_without_a_tokenizer_no_token_ends_the_text(counting):
    counting.tokenizer = None
    assert counting.generate([8], max_tokens=5) == [9, 10, 0, 1, 2]


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_few_tokens(model, max_tokens):
    assert len(model.generate([1, 2], max_tokens=max_tokens)) == max_tokens
    assert model.generate(torch.tensor([[1, 2]]), max_tokens=max_tokens).shape == (1, max_tokens)


def stream(model, prompt, **options):
    pieces = list(model.stream(prompt, **options))
    assert all(p.finish_reason is None for p in pieces[:-1])
    return "".join(p.text for p in pieces), pieces[-1].finish_reason, [p.token for p in pieces[:-1]]


@pytest.mark.parametrize(
    "prompt, options, text, reason",
    [
        ("a", {"max_tokens": 3}, "bcd", "length"),
        ("a", {"max_tokens": 8}, "bcdefghi", "length"),  # the held "i" comes at the end
        ("a", {"max_tokens": 0}, "", "length"),
        ("a", {}, "bcdefghij", "eos"),
        ("abc", {}, "defghij", "eos"),
        ("", {"max_tokens": 3}, "abc", "length"),
        ("a", {"stop": "d"}, "bc", "stop"),
        ("a", {"stop": "b"}, "", "stop"),
        ("a", {"stop": "ef"}, "bcd", "stop"),
        ("a", {"stop": ["gh", "e"]}, "bcd", "stop"),
        ("a", {"stop": ["e", "cde"]}, "b", "stop"),  # both end here: the earliest beginning counts
        ("a", {"stop": ["z", "dex"]}, "bcdefghij", "eos"),
        ("a", {"stop": "dex", "max_tokens": 4}, "bcde", "length"),  # the beginning of a stop at the end
        ("a", {"stop": "jk"}, "bcdefghij", "eos"),
        ("a", {"stop": "i", "max_tokens": 8}, "bcdefgh", "stop"),  # found only in what was held back
        ("a", {"stop": "hij"}, "bcdefg", "stop"),
        ("h", {"stop": "a"}, "ij", "eos"),
        ("abc", {"stop": "cd"}, "defghij", "eos"),  # the prompt is not searched
    ],
)
def test_texts_and_how_they_end(counting, prompt, options, text, reason):
    assert counting.generate(prompt, **options) == text
    assert stream(counting, prompt, **options)[:2] == (text, reason)
    assert counting.generate([prompt, "a"], **options)[0] == text


def test_no_piece_holds_a_beginning_of_a_stop_string(counting):
    pieces = list(counting.stream("a", stop="efg"))
    assert [p.text for p in pieces] == ["b", "c", "d", "", "", "", ""]
    pieces = list(counting.stream("a", stop="efx", max_tokens=6))
    assert [p.text for p in pieces] == ["b", "c", "d", "", "", "efg", ""]


def test_nothing_is_computed_after_the_stop(counting):
    calls = []
    counting.register_forward_hook(lambda *_: calls.append(1))
    counting.generate("a", stop="c", max_tokens=40)
    assert len(calls) == 2
    calls.clear()
    assert counting.generate("a", max_tokens=0) == ""


def test_a_stream_gives_each_piece_when_it_is_made(counting):
    calls = []
    counting.register_forward_hook(lambda *_: calls.append(1))
    pieces = counting.stream("a", max_tokens=5)
    assert next(pieces).text == "b"
    assert len(calls) == 1
    assert next(pieces).token == 2
    assert len(calls) == 2


def test_a_stream_of_ids_has_tokens_and_with_a_tokenizer_text(counting):
    assert stream(counting, [0, 1], max_tokens=3) == ("cde", "length", [2, 3, 4])
    assert stream(counting, torch.tensor([0, 1]), max_tokens=3) == ("cde", "length", [2, 3, 4])
    counting.tokenizer = None
    assert stream(counting, [0, 1], max_tokens=3) == ("", "length", [2, 3, 4])


def test_ids_come_back_with_the_token_that_ended_them(counting):
    assert counting.generate([7], max_tokens=9) == [8, 9, EOS]
    assert counting.generate([0], stop="de") == [1, 2, 3, 4]


@pytest.mark.parametrize("temperature", [0.0, 3.0])
def test_ids_past_the_tokenizers_are_never_chosen(counting, temperature):
    """A vocabulary may be padded to a round size."""
    counting.tokenizer.vocab_size = 5
    counting.tokenizer.eos_token_id = None
    written = counting.generate([0], max_tokens=40, temperature=temperature, seed=0)
    assert written[:3] == [1, 2, 3] or temperature
    assert max(written) == 4


def test_texts_in_a_batch(counting):
    assert counting.generate(["a", "gh", ""], max_tokens=3) == ["bcd", "ij", "abc"]
    assert counting.generate(["a"], max_tokens=3) == ["bcd"]


@pytest.mark.parametrize(
    "prompt, options, message",
    [
        ([], {}, "the prompt is empty: give at least one token or a text"),
        ([[1], []], {}, "the prompt is empty: give at least one token or a text"),
        (torch.ones(0).long(), {}, r"ids must be .* and not empty, got torch.int64 of shape \(0,\)"),
        (torch.ones(1, 1, 1).long(), {}, r"ids must be .* got torch.int64 of shape \(1, 1, 1\)"),
        (torch.ones(2), {}, r"ids must be int64 or int32, .* got torch.float32 of shape \(2,\)"),
        ("a", {}, "the model has no tokenizer: give ids, and no stop strings"),
        ([1], {"stop": "x"}, "the model has no tokenizer: give ids, and no stop strings"),
        ([1], {"max_tokens": -1}, "max_tokens must not be negative, got -1"),
        ([1], {"temperature": -1.0}, "temperature must be 0 or more, got -1.0"),
        ([1], {"top_p": 2.0}, r"top_p must be in \(0, 1\], got 2.0"),
        ([V], {}, f"token id {V} at row 0, position 0 is outside"),
        ([1, 1, -3, 1], {}, "token id -3 at row 0, position 2 is outside"),
    ],
)
def test_what_cannot_be_is_refused(model, prompt, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        model.generate(prompt, **options)
    with pytest.raises(ValueError, match="^stream takes one prompt$" if prompt == [[1], []] else message):
        list(model.stream(prompt, **options))


def test_the_place_of_a_wrong_id_is_the_same_whatever_the_segment(model, monkeypatch):
    monkeypatch.setattr(module, "PROMPT_SEGMENT", 2)
    with pytest.raises(ValueError, match="token id -3 at row 0, position 4 is outside"):
        model.generate([1, 1, 1, 1, -3, 1])
    with pytest.raises(ValueError, match="token id -3 at row 1, position 1 is outside"):
        model.generate([[1, 1], [1, -3]])


def test_a_stop_string_must_not_be_empty(counting):
    for stop in ("", ["x", ""]):
        with pytest.raises(ValueError, match=r"^a stop string must not be empty$"):
            counting.generate("a", stop=stop)


def test_stream_refuses_at_the_call_and_takes_one_prompt_only(model):
    """Not at the first `next`, which may be far from the mistake (a server has sent its headers by then)."""
    with pytest.raises(ValueError, match=r"^stream takes one prompt$"):
        model.stream([[1], [2]])


def test_weights_that_are_not_finite_are_found(model):
    with torch.no_grad():
        model.embedding.weight[3] = float("nan")
    with pytest.raises(ValueError, match="the logits are not finite"):
        model.generate([3])


def test_numpy_ids_are_ids(model):
    prompt = torch.tensor([1, 2, 3]).numpy()
    assert model.generate(prompt, max_tokens=3) == model.generate([1, 2, 3], max_tokens=3)


def test_what_generate_does_by_hand(model):
    """The state of a prompt, one token at a time, as the documentation shows it."""
    ids = some_ids(2, 4)
    with torch.no_grad():
        out = model(ids)
        state = LMState.stack([out.state.select([0]), out.state.select([1])])
        tokens = out.logits[:, -1].argmax(-1, keepdim=True)
        written = [tokens]
        for _ in range(4):
            out = model(tokens, state=state)
            state, tokens = out.state, out.logits[:, -1].argmax(-1, keepdim=True)
            written.append(tokens)
    assert torch.equal(torch.cat(written, 1), model.generate(ids, max_tokens=5))
