"""Turns sizes into this project's training step: the one that `Pretrain` runs."""

import itertools
from typing import Any

import jax
import numpy as np
from serve import serve, tokens_of

from marin_dagster.models.config import MoEConfig
from marin_dagster.models.transformer import Transformer
from marin_dagster.training.optimizer import OptimizerConfig
from marin_dagster.training.schedule import WarmupStableDecay
from marin_dagster.training.step import initial_state, make_step

NUM_STEPS = 1_000  # of the schedule


def start(sizes: dict[str, Any]):
    config = MoEConfig(
        hidden_dim=sizes["hidden_dim"],
        num_layers=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        num_kv_heads=sizes["num_heads"],
        head_dim=sizes["head_dim"],
        expert_dim=sizes["expert_dim"],
        num_experts=sizes["num_experts"],
        num_experts_per_token=sizes["num_experts_per_token"],
        num_shared_experts=sizes["num_shared_experts"],
        seq_len=sizes["seq_len"],
    )
    schedule = WarmupStableDecay(warmup_steps=10, decay_steps=100)
    optimizer = OptimizerConfig(learning_rate=3e-4, schedule=schedule)
    model = Transformer(config, sizes["vocab_size"], jax.random.key(0))
    parameters = config.parameters(sizes["vocab_size"])
    batches = itertools.cycle([_batch(rows) for rows in tokens_of(sizes)])
    state = initial_state(model, optimizer, NUM_STEPS)
    run = make_step(optimizer, NUM_STEPS, 0.0)

    def step() -> float:
        nonlocal state
        state, metrics = run(state, next(batches))
        return float(metrics["train/loss"])

    facts = {"versions": {"jax": jax.__version__}, "parameters": parameters.total}
    return step, {**facts, "flops": config.flops_per_token(sizes["vocab_size"])}


def _batch(rows: np.ndarray) -> dict[str, np.ndarray]:
    tokens = rows[:, :-1].astype(np.int32)
    return {
        "tokens": tokens,
        "targets": rows[:, 1:].astype(np.int32),
        "loss_weights": np.ones(tokens.shape, np.float32),
        "segment_ids": np.zeros(tokens.shape, np.int32),
    }


if __name__ == "__main__":
    serve(start)
