"""Turns sizes into this project's training step: the one that `Pretrain` runs."""

import math
from typing import Any

import jax
import numpy as np
from serve import Peer, serve

from marin_dagster.models.config import MoEConfig, RoutedConfig
from marin_dagster.models.hero import HeroConfig
from marin_dagster.training.heuristics import FINAL_RATIO, muonh_learning_rate, warmup_steps
from marin_dagster.training.hyperball import ADAM_RMS
from marin_dagster.training.optimizer import AdamW, Muon
from marin_dagster.training.schedule import Linear, WarmupStableDecay
from marin_dagster.training.step import evaluation_sums, initial_state, make_step

OPTIMIZERS = {
    "adamw": lambda rate, steps, _: AdamW(
        learning_rate=rate,
        schedule=WarmupStableDecay(warmup_steps=steps // 10, decay_steps=steps // 2),
    ),
    "muon": lambda rate, steps, width: Muon(  # updates of square matrices as large as Levanter's
        learning_rate=muonh_learning_rate(rate) / (ADAM_RMS * math.sqrt(width)),
        adam_learning_rate=rate,
        schedule=Linear(warmup_steps=warmup_steps(steps), final_ratio=FINAL_RATIO),
    ),
}


def start(sizes: dict[str, Any]) -> Peer:
    num_steps = sizes["num_steps"]
    config = model_config(sizes)
    make_optimizer = OPTIMIZERS[sizes.get("optimizer", "adamw")]
    optimizer = make_optimizer(sizes["learning_rate"], num_steps, sizes["hidden_dim"])
    model = config.make(sizes["vocab_size"], jax.random.key(0))
    state = initial_state(model, optimizer, num_steps)
    run = make_step(optimizer, num_steps, 0.0)

    def step(rows: np.ndarray) -> float:
        nonlocal state
        state, metrics = run(state, _batch(rows))
        return float(metrics["train/loss"])

    def evaluate(rows: np.ndarray) -> float:
        nats, weight = evaluation_sums(state.model, _batch(rows))
        return float(nats / weight)

    parameters = config.parameters(sizes["vocab_size"])
    facts = {
        "versions": {"jax": jax.__version__},
        "parameters": parameters.total,
        "flops_per_token": config.flops_per_token(sizes["vocab_size"], sizes["seq_len"]),
    }
    return Peer(step, facts, evaluate)


def model_config(sizes: dict[str, Any]) -> RoutedConfig:
    shape = {
        "hidden_dim": sizes["hidden_dim"],
        "num_layers": sizes["num_layers"],
        "num_heads": sizes["num_heads"],
        "num_kv_heads": sizes["num_kv_heads"],
        "head_dim": sizes["head_dim"],
        "expert_dim": sizes["expert_dim"],
        "num_experts": sizes["num_experts"],
        "num_experts_per_token": sizes["num_experts_per_token"],
        "num_shared_experts": sizes["num_shared_experts"],
        "seq_len": sizes["seq_len"],
    }
    if sizes.get("model") == "hero":
        return HeroConfig(**shape, global_kv_heads=sizes["num_kv_heads"])
    return MoEConfig(**shape)


def _batch(rows: np.ndarray) -> dict[str, np.ndarray]:
    """Rows whose last token has no target, as those of the peers."""
    weights = np.ones(rows.shape, np.float32)
    weights[:, -1] = 0
    return {
        "tokens": rows,
        "targets": np.roll(rows, -1, axis=1),
        "loss_weights": weights,
        "segment_ids": np.zeros(rows.shape, np.int32),
    }


if __name__ == "__main__":
    serve(start)
