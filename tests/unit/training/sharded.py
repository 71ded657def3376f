"""Prints how far a sharded training step is from the one of a single device, as JSON by mesh.

`python -m tests.unit.training.sharded MESHES [PROCESSES NUMBER PORT]`; meshes are separated by
semicolons. `MESH@ring` exchanges tokens by the ring, `MESH@ragged` as on an accelerator, by an
emulation of what CPUs lack, and `MESH@senders` with a limit of what one device sends another.
"""

import contextlib
import dataclasses
import functools
import json
import sys
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from marin_dagster.models import exchange as exchange_module
from marin_dagster.models.config import MoEConfig
from marin_dagster.models.router import with_router_bias
from marin_dagster.models.transformer import Transformer
from marin_dagster.recipe import Devices
from marin_dagster.training.balance import Balance
from marin_dagster.training.mesh import global_batch, make_mesh, on_mesh, shard_state
from marin_dagster.training.step import _Losses

CONFIG = MoEConfig(
    hidden_dim=16,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    expert_dim=8,
    num_experts=8,
    num_experts_per_token=2,
    num_shared_experts=1,
    seq_len=16,
    capacity_factor=0.9,
)
VOCAB, ROWS = 32, 8
BALANCE = Balance(load_balance_loss_weight=0.1, sequence_balance_loss_weight=0.1)


def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (ROWS, CONFIG.seq_len)
    there = np.arange(shape[1]) < rng.integers(2, 17, (ROWS, 1))
    segments = np.cumsum(rng.random(shape) < 0.1, axis=1, dtype=np.int32)
    return {
        "tokens": rng.integers(0, VOCAB, shape, dtype=np.int32),
        "targets": rng.integers(0, VOCAB, shape, dtype=np.int32),
        "loss_weights": there.astype(np.float32),
        "segment_ids": np.where(there, segments, -1).astype(np.int32),
    }


@functools.cache
def model(senders: float | None = None) -> Transformer:
    config = dataclasses.replace(CONFIG, sender_capacity_factor=senders)
    plain = Transformer(config, VOCAB, jax.random.key(0))
    made = with_router_bias(plain, 0.1 * jax.random.normal(jax.random.key(1), (1, 8)))
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, made)


def step(text: str | None):
    """Sums and gradients on the mesh of that name; None: on one device."""
    text, _, exchange = (text or "").partition("@")
    mesh = make_mesh(text) if text else None
    losses = _Losses(0.1, BALANCE)

    @eqx.filter_jit
    def take(model, rows):
        return losses.gradients(model, rows, jax.random.key(3), 1)

    ring = "ring" if exchange == "ring" else "all_to_all"
    made = model(0.5 if exchange == "senders" else None)
    with on_mesh(mesh, Devices(exchange=ring)), ragged(exchange == "ragged"):
        out = take(shard_state(made, mesh), global_batch(batch(), mesh))
    return jax.tree.map(whole, out)


@contextlib.contextmanager
def ragged(wanted: bool) -> Iterator[None]:
    """Exchanges just the rows that there are, as `jax.lax.ragged_all_to_all` does."""
    fixed = exchange_module._Fixed
    if wanted:
        exchange_module._Fixed = exchange_module._Ragged
        jax.lax.ragged_all_to_all = emulated
    yield
    exchange_module._Fixed = fixed


def emulated(rows, room, input_offsets, send_sizes, output_offsets, recv_sizes, *, axis_name):
    me = jax.lax.axis_index(axis_name)
    every = jax.lax.all_gather(rows, axis_name)
    starts, sizes, ends = (
        jax.lax.all_gather(numbers, axis_name)[:, me]
        for numbers in (input_offsets, send_sizes, output_offsets)
    )
    place = jnp.arange(room.shape[0])[None] - ends[:, None]
    mine = (place >= 0) & (place < jnp.where(sizes == recv_sizes, sizes, -1)[:, None])
    source = jnp.where(mine, starts[:, None] + place, rows.shape[0])
    found = jax.vmap(lambda sent, at: sent.at[at].get(mode="fill", fill_value=0))(every, source)
    return room + found.sum(0).astype(room.dtype)


def whole(leaf: jax.Array) -> np.ndarray:
    if leaf.is_fully_addressable:
        return np.asarray(leaf)
    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))


def main(meshes: str, processes: int = 1, number: int = 0, port: int = 0) -> None:
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, number)
    want = step(None)
    worst, sent = {}, {}
    for name in meshes.split(";"):
        out = step(name)
        got = jax.tree_util.tree_leaves_with_path(out)
        worst[name] = max(map(difference, got, jax.tree.leaves(want)))
        sent[name] = float(out[0]["sender_dropped"].sum())
    dropped = float(want[0]["dropped"].sum())
    devices = jax.device_count()
    print(json.dumps({"worst": worst, "dropped": dropped, "sent": sent, "devices": devices}))


def difference(named, want: np.ndarray) -> tuple[float, str]:
    name, got = jax.tree_util.keystr(named[0], simple=True, separator="."), named[1]
    scale = max(1.0, float(np.abs(want).max()))  # sums over all tokens are large
    return float(np.abs(got.astype(float) - want).max()) / scale, name


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
