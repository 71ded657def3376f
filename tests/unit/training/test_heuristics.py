"""The fits reproduce what Marin published, and refuse what is no run."""

import math

import pytest

from marin_dagster.training import heuristics as h

HERO = {"tokens": 390_251 * 11_264 * 4_096, "tokens_per_step": 11_264 * 4_096}


def test_the_hero_fit_gives_the_published_rates_and_epsilon():
    adam = h.hero_learning_rate(**HERO, hidden_dim=6_144)
    assert adam == pytest.approx(7.594e-4, rel=2e-4)
    assert h.muonh_learning_rate(adam) == pytest.approx(3.291e-3, rel=2e-4)
    assert h.epsilon(**HERO) == pytest.approx(6.04e-15, rel=1e-3)


def test_a_doubled_batch_follows_the_precedent_of_the_67b_run():
    """Its batch went from 4,096 to 8,192 rows: the rate grew by √2, epsilon fell by √2."""
    small, large = ({"tokens": 1e13, "tokens_per_step": rows * 8_192} for rows in (4_096, 8_192))
    for rate in (h.hero_learning_rate, h.may_learning_rate):
        ratio = rate(**large, hidden_dim=2_560) / rate(**small, hidden_dim=2_560)
        assert ratio == pytest.approx(math.sqrt(2))
    assert h.epsilon(**small) / h.epsilon(**large) == pytest.approx(math.sqrt(2))


def test_the_three_fits_agree_within_their_spread_where_all_were_made():
    tokens, width, rows = 5e10, 768, 256
    rates = [
        h.hero_learning_rate(tokens, width, rows * 4_096),
        h.may_learning_rate(tokens, width, rows * 4_096),
        h.v16_learning_rate(tokens, width, rows),
    ]
    assert max(rates) < 2 * min(rates)


def test_longer_and_wider_runs_get_lower_rates():
    for fit in (h.hero_learning_rate, h.may_learning_rate, h.v16_learning_rate):
        assert fit(1e12, 1_024, 1_024) > fit(2e12, 1_024, 1_024)
        assert fit(1e12, 1_024, 1_024) > fit(1e12, 2_048, 1_024)


def test_the_rate_of_muonh_is_capped():
    assert h.muonh_learning_rate(0.001) == pytest.approx(0.013 / 3)
    assert h.muonh_learning_rate(0.03) == 0.05


def test_beta2_forgets_the_same_number_of_tokens_at_every_batch_until_it_is_cut():
    halves = [math.log(0.5) / math.log(h.beta2(size)) * size for size in (65_536, 131_072, 524_288)]
    assert halves == pytest.approx([halves[0]] * 3)
    assert h.beta2(1) == 0.9999
    assert h.beta2(1e9) == 0.95


def test_the_warm_up_is_one_per_cent_of_the_steps_and_never_none():
    assert [h.warmup_steps(steps) for steps in (390_251, 120, 10)] == [3_903, 1, 1]


@pytest.mark.parametrize(("width", "layers"), [(512, 6), (768, 8), (1_024, 11), (2_560, 26)])
def test_the_depth_rule_gives_the_layers_of_the_ladder_and_of_the_67b_run(width, layers):
    assert h.num_layers(width) == layers
    assert h.num_heads(width) == width // 128


def test_delphi_gives_its_reference_and_the_values_of_a_published_run():
    reference = h.delphi(2.5e9, 64 * 4_096, 1e8)
    assert reference[:4] == pytest.approx((0.0063, 0.000656, 0.9999, 1.85e-8))
    published = h.delphi(22.3e9, 32 * 8_192, 1.4e9)  # a run of 8,192-token rows, batch 32
    assert published[:4] == pytest.approx((0.00327, 0.000220, 0.9999, 5.53e-8), rel=2e-3)
    assert h.delphi(2.5e9, 64 * 4_096 * 16, 1e8).learning_rate == 0.01


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: h.hero_learning_rate(0, 512, 1), "tokens=0 is not a positive"),
        (lambda: h.may_learning_rate(1e9, 512, -1), "tokens_per_step=-1 is not a positive"),
        (lambda: h.v16_learning_rate(1e9, 64, 8), "hidden_dim=64 is below 128"),
        (lambda: h.epsilon(1e6, 1e9), r"tokens=1e\+06 are fewer than one step of 1e\+09"),
        (lambda: h.beta2(math.nan), "tokens_per_step=nan"),
        (lambda: h.muonh_learning_rate(math.inf), "adam_learning_rate=inf"),
        (lambda: h.num_layers(100), "hidden_dim=100"),
        (lambda: h.delphi(2.6e10, 1e6, 1e8), "260 per parameter, above 250"),
    ],
)
def test_sizes_of_no_run_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
