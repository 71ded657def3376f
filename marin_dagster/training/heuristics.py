"""Turns the size of a run (tokens, width, tokens per step) into its hyperparameters.

Fits of the Marin project: the coefficients are theirs, from sweeps of small models; a larger run
extrapolates. Units: `tokens` and `tokens_per_step` in tokens, `hidden_dim` in features. All
functions raise ValueError for sizes of no run.
"""

import math
from typing import NamedTuple

WARMUP_SHARE = 0.01  # of the steps, with the hero fit
FINAL_RATIO = 0.05  # of the peak rate, at the end of the linear fall
MUONH_RATIO = 13 / 3  # rate of MuonH and AdamH over that of Adam
MUONH_LIMIT = 0.05
BETA2_LOW, BETA2_HIGH = 0.95, 0.9999
ROW = 4_096  # tokens of the rows that Delphi's batch sizes count
DELPHI_STEPS = 1 << 16
DELPHI_RATE_LIMIT = 0.01
DELPHI_TOKENS_PER_PARAMETER = 250


def hero_learning_rate(tokens: float, hidden_dim: int, tokens_per_step: float) -> float:
    """Adam's peak rate by the fit of August 2026, rows of 8,192 tokens; R² 0.978.

    Source: issue 8435 of marin-community/marin, the 535B-A23B run.
    """
    _check_run(tokens, tokens_per_step, hidden_dim)
    power = tokens**-0.3461 * hidden_dim**-0.3448
    return 0.087571 * power * math.sqrt(tokens_per_step)


def may_learning_rate(tokens: float, hidden_dim: int, tokens_per_step: float) -> float:
    """Adam's peak rate by the fit of May 2026, 17 sizes, rows of 4,096 tokens; R² 0.996."""
    _check_run(tokens, tokens_per_step, hidden_dim)
    return 0.06602 * tokens**-0.395 * hidden_dim**-0.150 * math.sqrt(tokens_per_step)


def v16_learning_rate(tokens: float, hidden_dim: int, batch_size: int) -> float:
    """Adam's peak rate by the fit of version 16, 186 runs, `batch_size` in rows; R² 0.995."""
    _check_run(tokens, batch_size, hidden_dim)
    return 1.63 * tokens**-0.2813 * hidden_dim**-0.3678 * math.sqrt(batch_size)


def muonh_learning_rate(adam_learning_rate: float) -> float:
    """The peak rate of MuonH and AdamH beside one of Adam, at most `MUONH_LIMIT`."""
    _check_positive(adam_learning_rate=adam_learning_rate)
    return min(MUONH_RATIO * adam_learning_rate, MUONH_LIMIT)


def beta2(tokens_per_step: float) -> float:
    """Adam's β₂ of one half-life in tokens, 0.999 at 131,072 tokens per step, cut at both ends."""
    _check_positive(tokens_per_step=tokens_per_step)
    return min(max(0.999 ** (tokens_per_step / 131_072), BETA2_LOW), BETA2_HIGH)


def epsilon(tokens: float, tokens_per_step: float) -> float:
    """Adam's ε, which grows with the square root of the number of steps."""
    _check_run(tokens, tokens_per_step)
    return 9.676e-18 * math.sqrt(tokens / tokens_per_step)


def warmup_steps(num_steps: int) -> int:
    """Steps of the warm-up; the rest falls linearly to `FINAL_RATIO`."""
    _check_positive(num_steps=num_steps)
    return max(1, round(WARMUP_SHARE * num_steps))


def num_layers(hidden_dim: int) -> int:
    """Layers for a width, d / (64 + 4·log₂ d − 9); the 535B run departs from it with 48."""
    _check_width(hidden_dim)
    return max(1, round(hidden_dim / (64 + 4 * math.log2(hidden_dim) - 9)))


def num_heads(hidden_dim: int) -> int:
    """Heads for a width: one per 128 features."""
    _check_width(hidden_dim)
    return hidden_dim // 128


class Delphi(NamedTuple):
    """Hyperparameters of a dense model of the Delphi suite, trained with AdamH."""

    learning_rate: float  # of AdamH
    adam_learning_rate: float
    beta2: float
    epsilon: float
    max_grad_norm: float = 0.1
    z_loss_weight: float = 1e-7
    warmup_share: float = 0.1  # of the steps
    decay_share: float = 0.2  # of the steps, the last ones, to zero


def delphi(tokens: float, tokens_per_step: float, parameters: float) -> Delphi:
    """The Delphi suite's transfer from 64 rows of 4,096 tokens a step and 2.5e9 tokens.

    Raises ValueError for more than `DELPHI_TOKENS_PER_PARAMETER`, beyond which it was not fitted.
    Source: `CompletedAdamHHeuristic` of marin-community/marin.
    """
    _check_run(tokens, tokens_per_step)
    _check_positive(parameters=parameters)
    if tokens > DELPHI_TOKENS_PER_PARAMETER * parameters:
        raise ValueError(
            f"tokens={tokens:g} are {tokens / parameters:.0f} per parameter, above "
            f"{DELPHI_TOKENS_PER_PARAMETER}, where Delphi's fit ends; train a larger model or give "
            "the rates yourself"
        )
    rows, horizon = tokens_per_step / ROW / 64, tokens / 2.5e9
    rate = 0.0063 * math.sqrt(rows) * horizon**-0.3
    share = rows / horizon  # of the run in one step, over that of the reference
    return Delphi(
        learning_rate=min(rate, DELPHI_RATE_LIMIT),
        adam_learning_rate=0.000656 * math.sqrt(share),
        beta2=min(max(0.9999**rows, 0.9), 0.9999),
        epsilon=1.85e-8 / math.sqrt(share),
    )


def _check_run(tokens: float, per_step: float, hidden_dim: int | None = None) -> None:
    _check_positive(tokens=tokens, tokens_per_step=per_step)
    if tokens < per_step:
        raise ValueError(
            f"tokens={tokens:g} are fewer than one step of {per_step:g}; give the tokens of the "
            "whole run"
        )
    if hidden_dim is not None:
        _check_width(hidden_dim)


def _check_width(hidden_dim: int) -> None:
    if hidden_dim < 128:
        raise ValueError(
            f"hidden_dim={hidden_dim} is below 128, one head; the fits begin at 512, give the "
            "rates and sizes of a smaller model yourself"
        )


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}={value} is not a positive number; give the size of a run")
