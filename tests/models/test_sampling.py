import math

import pytest
import torch

from ssmith.models.sampling import Sampling, choose_token, seeded

# In no order, so that sorting has to be undone; far from every limit used below.
PROBABILITIES = {3: 0.50, 0: 0.28, 2: 0.15, 1: 0.07}
LOGITS = torch.tensor([PROBABILITIES[i] for i in range(4)]).log() + 3.0


def frequencies(sampling, logits=LOGITS, draws=300):
    generator = seeded(0)
    tokens = [choose_token(logits, sampling, generator) for _ in range(draws)]
    return {i: tokens.count(i) / draws for i in sorted(set(tokens))}


def assert_distribution(found, expected, draws=300):
    assert set(found) == set(expected)
    for token, p in expected.items():
        assert abs(found[token] - p) < 4 * math.sqrt(p * (1 - p) / draws) + 1e-9


def renormalised(*tokens):
    total = sum(PROBABILITIES[t] for t in tokens)
    return {t: PROBABILITIES[t] / total for t in tokens}


@pytest.mark.parametrize(
    "options, tokens",
    [
        ({}, (0, 1, 2, 3)),
        ({"top_k": 1}, (3,)),
        ({"top_k": 2}, (3, 0)),
        ({"top_k": 4}, (0, 1, 2, 3)),
        ({"top_k": 99}, (0, 1, 2, 3)),
        ({"top_p": 1e-9}, (3,)),
        ({"top_p": 0.49}, (3,)),
        ({"top_p": 0.51}, (3, 0)),
        ({"top_p": 0.77}, (3, 0)),
        ({"top_p": 0.79}, (3, 0, 2)),
        ({"top_p": 1.0}, (0, 1, 2, 3)),
        ({"min_p": 1.0}, (3,)),
        ({"min_p": 0.57}, (3,)),
        ({"min_p": 0.55}, (3, 0)),
        ({"min_p": 0.29}, (3, 0, 2)),
        ({"min_p": 1e-9}, (0, 1, 2, 3)),
        ({"top_k": 2, "top_p": 0.6}, (3,)),  # 0.50 of 0.78 is 0.64: reached by the first alone
        ({"top_k": 3, "top_p": 0.6}, (3, 0)),
        ({"top_k": 3, "min_p": 0.4}, (3, 0)),
        ({"top_p": 0.9, "min_p": 0.31}, (3, 0)),
    ],
)
def test_filters_leave_these_tokens_with_their_odds(options, tokens):
    assert_distribution(frequencies(Sampling(temperature=1.0, **options)), renormalised(*tokens))


def test_temperature_divides_the_logits():
    powers = {i: p**0.5 for i, p in PROBABILITIES.items()}
    expected = {i: p / sum(powers.values()) for i, p in powers.items()}
    assert_distribution(frequencies(Sampling(temperature=2.0)), expected)
    assert set(frequencies(Sampling(temperature=1e-3), draws=50)) == {3}


def test_temperature_comes_before_top_p():
    # at 4: 0.31, 0.27, 0.23, 0.19
    assert set(frequencies(Sampling(temperature=4.0, top_p=0.51))) == {3, 0}
    assert set(frequencies(Sampling(temperature=4.0, top_p=0.60))) == {3, 0, 2}


def test_temperature_zero_is_the_likeliest_whatever_else_is_set():
    for options in ({}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}):
        assert frequencies(Sampling(**options), draws=5) == {3: 1.0}


@pytest.mark.parametrize("temperature", [1e-8, 1e-30, 1e-38])
def test_the_smallest_temperatures_are_greedy(temperature):
    logits = torch.tensor([-30.0, 50.0, 49.0])
    assert set(frequencies(Sampling(temperature=temperature), logits, draws=9)) == {1}


def test_the_logits_are_not_changed():
    before = LOGITS.clone()
    frequencies(Sampling(1.0, 2, 0.9, 0.1), draws=2)
    assert torch.equal(LOGITS, before)


def test_ties_go_to_the_lower_index_when_greedy():
    assert choose_token(torch.tensor([1.0, 2.0, 2.0]), Sampling(), seeded(0)) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_logits_that_are_not_finite_raise(value, temperature):
    logits = torch.tensor([1.0, value, 2.0])
    with pytest.raises(ValueError, match=r"^the logits are not finite: the weights hold NaN or infinity$"):
        choose_token(logits, Sampling(temperature), seeded(0))


def test_bfloat16_logits():
    assert choose_token(LOGITS.bfloat16(), Sampling(), seeded(0)) == 3
    assert set(frequencies(Sampling(1.0), LOGITS.bfloat16(), draws=300)) == {0, 1, 2, 3}


def test_seeds():
    def draw(seed):
        generator = seeded(seed)
        return [choose_token(LOGITS, Sampling(1.0), generator) for _ in range(40)]

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)
    assert draw(None) != draw(None)  # 40 draws are the same once in 10^18 times
    torch.manual_seed(0)
    before = torch.get_rng_state()
    draw(5)
    assert torch.equal(torch.get_rng_state(), before), "the caller's random numbers are left alone"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"temperature": -0.1}, "temperature must be 0 or more, got -0.1"),
        ({"temperature": float("nan")}, "temperature must be 0 or more, got nan"),
        ({"temperature": float("inf")}, "temperature must be 0 or more, got inf"),
        ({"top_k": 0}, "top_k must be at least 1, got 0"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.1}, r"top_p must be in \(0, 1\], got 1.1"),
        ({"min_p": -0.1}, r"min_p must be in \(0, 1\], got -0.1"),
        ({"min_p": float("nan")}, r"min_p must be in \(0, 1\], got nan"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        Sampling(**options)
