"""Turns a library's name into its fastest float32 matmul: the limit of this machine."""

from typing import Any

from serve import serve

SIDE = 2048  # of square matrices
REPEATS = 8


def start(sizes: dict[str, Any]):
    makers = {"jax": _with_jax, "torch": _with_torch}
    step, version = makers[sizes["library"]]()
    facts = {"versions": {sizes["library"]: version}}
    return step, {**facts, "flops_per_step": 2 * SIDE**3 * REPEATS}


def _with_jax():
    import jax

    left, right = jax.random.normal(jax.random.key(0), (2, SIDE, SIDE))
    multiply = jax.jit(lambda left, right: left @ right)

    def step() -> float:
        for _ in range(REPEATS):
            multiply(left, right).block_until_ready()
        return 0.0

    return step, jax.__version__


def _with_torch():
    import torch

    left, right = torch.randn(2, SIDE, SIDE)
    out = torch.empty(SIDE, SIDE)

    def step() -> float:
        for _ in range(REPEATS):
            torch.mm(left, right, out=out)
        return 0.0

    return step, torch.__version__


if __name__ == "__main__":
    serve(start)
