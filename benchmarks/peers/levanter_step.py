"""Turns sizes into Levanter's own training step of its mixture of experts, on a CPU in float32."""

import tempfile
from importlib.metadata import version
from typing import Any

import haliax
import jax
import jax.numpy as jnp
import numpy as np
from haliax import Axis
from levanter.checkpoint import CheckpointerConfig
from levanter.grug.loss import fused_linear_softmax_cross_entropy_loss
from levanter.models.lm_model import LmExample
from levanter.models.snowball import SnowballConfig
from levanter.optim.config import AdamConfig
from levanter.optim.grugmuon import GrugMuonConfig
from levanter.tracker.tracker import NoopConfig
from levanter.trainer import Trainer, TrainerConfig
from levanter.utils.mesh import MeshConfig
from serve import Peer, serve

# What Levanter recommends for this model: a linear fall to 5 % after 1 % of warm-up, and matrices
# that learn 13/3 as fast with Muon as with Adam.
SCHEDULE = {"lr_schedule": "linear", "min_lr_ratio": 0.05, "warmup": 0.01}
OPTIMIZERS = {
    "adam": lambda rate: AdamConfig(learning_rate=rate, **SCHEDULE),
    "muon": lambda rate: GrugMuonConfig(learning_rate=13 / 3 * rate, adam_lr=rate, **SCHEDULE),
}


def start(sizes: dict[str, Any]) -> Peer:
    optimizer = OPTIMIZERS[sizes.get("optimizer", "adam")](sizes["learning_rate"])
    trainer = open_trainer(sizes, optimizer)
    state = first_state(trainer, sizes)

    def step(rows: np.ndarray) -> float:
        nonlocal state
        info = trainer.train_step(state, example(trainer, rows))
        state = info.state
        return float(info.loss)

    evaluate_model = haliax.named_jit(next_token_loss, axis_resources=trainer.compute_axis_mapping)

    def evaluate(rows: np.ndarray) -> float:
        return float(evaluate_model(state.model, example(trainer, rows)))

    versions = {"levanter": version("marin-levanter"), "jax": jax.__version__}
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.model))
    return Peer(step, {"versions": versions, "parameters": parameters}, evaluate)


def model_config(sizes: dict[str, Any]) -> SnowballConfig:
    return SnowballConfig(
        vocab_size=sizes["vocab_size"],
        hidden_dim=sizes["hidden_dim"],
        intermediate_dim=sizes["expert_dim"],
        shared_expert_intermediate_dim=sizes["expert_dim"] * sizes["num_shared_experts"],
        num_experts=sizes["num_experts"],
        num_experts_per_token=sizes["num_experts_per_token"],
        num_layers=sizes["num_layers"],
        num_heads=sizes["num_heads"],
        num_kv_heads=sizes["num_kv_heads"],
        head_dim=sizes["head_dim"],
        max_seq_len=sizes["seq_len"],
        sliding_window=sizes["seq_len"],
        initializer_std=0.5 / sizes["hidden_dim"] ** 0.5,  # the rule of its recipes
    )


def open_trainer(sizes: dict[str, Any], optimizer: Any) -> Trainer:
    """Enters Levanter's trainer, which stays open until the process ends."""
    num_steps = sizes["num_steps"]
    folder = tempfile.mkdtemp(prefix="levanter-")
    config = TrainerConfig(
        tracker=NoopConfig(),
        log_dir=folder,
        checkpointer=CheckpointerConfig(base_path=folder),
        require_accelerator=False,
        mesh=MeshConfig(
            axes={"data": -1, "expert": 1, "context": 1},
            compute_mapping={"batch": ["replica_dcn", "data", "expert"]},
        ),
        use_explicit_mesh_axes=True,
        log_jaxprs=False,
        log_xla_hlo=False,
        train_batch_size=sizes["batch_size"],
        num_train_steps=num_steps,
    )
    config.initialize()

    trainer = Trainer(config, optimizer.build(num_steps), next_token_loss, add_default_hooks=False)
    return trainer.__enter__()


def next_token_loss(model, batch: LmExample, *, key=None):
    """The loss of Levanter's recipes for this model: its fused cross entropy."""
    hidden = model.activations(batch.tokens, batch.attn_mask, key=key).array
    labels = haliax.roll(batch.tokens, -1, "position").array
    return fused_linear_softmax_cross_entropy_loss(
        hidden,
        model.transformer.output_proj,
        labels,
        weight=batch.loss_weight.array,
        reduction="mean",
        dtype=jnp.float32,
    )


def first_state(trainer: Trainer, sizes: dict[str, Any]):
    config = model_config(sizes)
    vocabulary = Axis("vocab", sizes["vocab_size"])
    keys = jax.random.split(jax.random.PRNGKey(0))
    return trainer.initial_state(keys[0], model_init=lambda: config.build(vocabulary, key=keys[1]))


def example(trainer: Trainer, rows: np.ndarray) -> LmExample:
    """Rows whose every token but the last has a target, as its data loader hands out."""
    batch, position = Axis("batch", rows.shape[0]), Axis("position", rows.shape[1])
    tokens = haliax.named(jnp.asarray(rows, jnp.int32), (batch, position))
    mask = LmExample.causal_loss_mask(position).astype(jnp.float32).broadcast_axis(batch)
    return haliax.shard(LmExample(tokens=tokens, loss_weight=mask), trainer.compute_axis_mapping)


if __name__ == "__main__":
    serve(start)
