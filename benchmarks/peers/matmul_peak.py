"""Turns a library's name into its float32 matmul of large squares: the limit of the machine."""

from typing import Any

from serve import Peer, serve

SIDE = 2048  # of the matrices
REPEATS = 8


def start(sizes: dict[str, Any]) -> Peer:
    multiply, version = {"jax": _with_jax, "torch": _with_torch}[sizes["library"]]()

    def step(_) -> float:
        for _ in range(REPEATS):
            multiply()
        return 0.0

    versions = {sizes["library"]: version}
    return Peer(step, {"versions": versions, "flops_per_step": 2 * SIDE**3 * REPEATS})


def _with_jax():
    import jax

    left, right = jax.random.normal(jax.random.key(0), (2, SIDE, SIDE))
    multiply = jax.jit(lambda left, right: left @ right)
    return lambda: multiply(left, right).block_until_ready(), jax.__version__


def _with_torch():
    import torch

    left, right = torch.randn(2, SIDE, SIDE)
    out = torch.empty(SIDE, SIDE)
    return lambda: torch.mm(left, right, out=out), torch.__version__


if __name__ == "__main__":
    serve(start)
