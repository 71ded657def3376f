"""Turns gradients into updates: AdamW with clipping, as a value."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from marin_dagster.training.schedule import Schedule

if TYPE_CHECKING:
    import optax

UNDECAYED = ("embedding", "norm", "bias")  # parts of names that weight decay leaves alone


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW (Loshchilov and Hutter 2019): decoupled decay, times the learning rate."""

    learning_rate: float  # at the peak of the schedule
    schedule: Schedule
    weight_decay: float = 0.1  # matrices only: not norms, embeddings or router biases
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    max_grad_norm: float | None = 1.0

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise ValueError(
                f"learning_rate={self.learning_rate} is not positive; nothing would be learned"
            )
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"{name}={getattr(self, name)} is outside 0 to 1; give the share of the old "
                    "average that is kept, as 0.9"
                )
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay={self.weight_decay} is negative; use 0 for none")

    def learning_rate_at(self, step: Any, num_steps: int) -> Any:
        """The learning rate of a step, counted from 0."""
        return self.learning_rate * self.schedule.ratio(step, num_steps)

    def make(self, num_steps: int) -> "optax.GradientTransformation":
        """Makes the optax transformation of a run of `num_steps`."""
        import optax

        def negative_rate(step):
            return -self.learning_rate_at(step, num_steps)

        steps = [
            optax.scale_by_adam(self.beta1, self.beta2, self.epsilon),
            optax.add_decayed_weights(self.weight_decay, mask=decay_mask),
            optax.scale_by_schedule(negative_rate),
        ]
        if self.max_grad_norm is not None:
            steps.insert(0, optax.clip_by_global_norm(self.max_grad_norm))
        return optax.chain(*steps)


def decay_mask(params: Any) -> Any:
    """Marks the leaves that weight decay shrinks: the matrices, by their names."""
    import jax

    def decayed(path, _) -> bool:
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        return not any(part in name for part in UNDECAYED)

    return jax.tree_util.tree_map_with_path(decayed, params)
