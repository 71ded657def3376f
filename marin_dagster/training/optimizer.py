"""Turns gradients into updates: AdamW, Muon, MuonH and AdamH, as values.

Which rule a parameter gets is decided by its dotted name, as `layers.0.moe.gate_up`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from marin_dagster.training.schedule import Schedule

if TYPE_CHECKING:
    import optax

UNDECAYED = ("*embedding", "*norm.weight", "*bias")  # what AdamW's decay leaves alone
STATE = ("*router.bias",)  # arrays of a model that no optimizer changes or remembers
BY_ADAM = ("*embedding", "*router.weight", "*norm.weight", "*gate", "*conv*")
HEAD = "head"
RATE, ADAM_RATE = "train/learning_rate", "optim/adam_learning_rate"
FIXED = "fixed"  # the group of `STATE`


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(ABC):
    """What every optimizer has: a peak rate, a schedule, Adam's constants, and clipping."""

    learning_rate: float  # at the peak of the schedule
    schedule: Schedule
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    max_grad_norm: float | None  # of all gradients together; None: not clipped

    def __post_init__(self) -> None:
        for name in ("learning_rate", "adam_learning_rate"):
            if not getattr(self, name, 1) > 0:
                raise ValueError(
                    f"{name}={getattr(self, name)} is not positive; nothing would be learned"
                )
        for name in ("beta1", "beta2", "momentum"):
            if not 0 <= getattr(self, name, 0) < 1:
                raise ValueError(
                    f"{name}={getattr(self, name)} is outside 0 to 1; give the share of the old "
                    "average that is kept, as 0.9"
                )
        for name in ("epsilon", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} is not positive; give a small positive number")
        weight_decay = getattr(self, "weight_decay", 0)
        if weight_decay < 0:
            raise ValueError(f"weight_decay={weight_decay} is negative; use 0 for none")

    @property
    @abstractmethod
    def peaks(self) -> Mapping[str, float]:
        """Peak learning rates by the names under which they are logged; `RATE` is one."""

    @abstractmethod
    def group_of(self, name: str, ndim: int) -> str:
        """The group of a parameter of this name and number of axes."""

    @abstractmethod
    def groups(self, num_steps: int) -> "dict[str, optax.GradientTransformation]":
        """The rule of each group."""

    def rates_at(self, step: Any, num_steps: int) -> dict[str, Any]:
        """The learning rates of a step, counted from 0, by the names of `peaks`."""
        ratio = self.schedule.ratio(step, num_steps)
        return {name: peak * ratio for name, peak in self.peaks.items()}

    def learning_rate_at(self, step: Any, num_steps: int) -> Any:
        """The rate `RATE` of a step, counted from 0."""
        return self.rates_at(step, num_steps)[RATE]

    def make(self, num_steps: int) -> "optax.GradientTransformation":
        """Makes the optax transformation of a run of `num_steps`."""
        import optax

        fixed = optax.set_to_zero()
        rules: dict[Hashable, Any] = {**self.groups(num_steps), FIXED: fixed}
        grouped = optax.partition(rules, self.labels)
        if self.max_grad_norm is None:
            return grouped
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), grouped)

    def labels(self, params: Any) -> Any:
        """The group of every parameter, as a tree."""
        return _by_name(params, self._label)

    def _label(self, name: str, ndim: int) -> str:
        return FIXED if matches(name, STATE) else self.group_of(name, ndim)

    def _adam(self) -> "optax.GradientTransformation":
        import optax

        return optax.scale_by_adam(self.beta1, self.beta2, self.epsilon)

    def _falling(self, rate: str, num_steps: int) -> "optax.GradientTransformation":
        """Multiplies by the negative rate of that name."""
        import optax

        return optax.scale_by_schedule(lambda step: -self.rates_at(step, num_steps)[rate])


@dataclass(frozen=True, kw_only=True)
class AdamW(OptimizerConfig):
    """AdamW (Loshchilov and Hutter 2019): decoupled decay, times the learning rate."""

    weight_decay: float = 0.1  # matrices only: not norms, embeddings or router biases
    max_grad_norm: float | None = 1.0

    @property
    def peaks(self) -> Mapping[str, float]:
        return {RATE: self.learning_rate}

    def group_of(self, name: str, ndim: int) -> str:
        return "adamw"

    def groups(self, num_steps: int) -> "dict[str, optax.GradientTransformation]":
        import optax

        decay = optax.add_decayed_weights(self.weight_decay, mask=decay_mask)
        return {"adamw": optax.chain(self._adam(), decay, self._falling(RATE, num_steps))}


@dataclass(frozen=True, kw_only=True)
class _WithAdam(OptimizerConfig):
    """A rule for matrices beside Adam for the rest: what has one axis, and `by_adam`."""

    adam_learning_rate: float  # at the peak, for the parameters of Adam
    by_adam: tuple[str, ...] = BY_ADAM  # patterns of dotted names

    @property
    def peaks(self) -> Mapping[str, float]:
        return {RATE: self.learning_rate, ADAM_RATE: self.adam_learning_rate}

    def _is_matrix(self, name: str, ndim: int) -> bool:
        return ndim >= 2 and not matches(name, self.by_adam)


@dataclass(frozen=True, kw_only=True)
class Muon(_WithAdam):
    """Muon (Jordan et al. 2024) on matrices, Adam on the head and the rest.

    Each matrix of a stack (the experts) is orthogonalised by itself. Updates are scaled to the
    root mean square of AdamW's (Liu et al. 2025, arXiv 2502.16982), whose rates therefore serve.
    """

    momentum: float = 0.95
    weight_decay: float = 0.1  # matrices of Muon
    max_grad_norm: float | None = None

    def group_of(self, name: str, ndim: int) -> str:
        return "muon" if name != HEAD and self._is_matrix(name, ndim) else "adam"

    def groups(self, num_steps: int) -> "dict[str, optax.GradientTransformation]":
        import optax

        from marin_dagster.training.hyperball import muon, muon_scale

        decay = optax.add_decayed_weights(self.weight_decay)
        falling = self._falling(RATE, num_steps)
        return {
            "muon": optax.chain(muon(self.momentum), muon_scale(), decay, falling),
            "adam": optax.chain(self._adam(), self._falling(ADAM_RATE, num_steps)),
        }


@dataclass(frozen=True, kw_only=True)
class _Hyperball(_WithAdam):
    """Matrices that keep their norm, so that decay has no place there; Adam may decay some."""

    weight_decay: float = 0.0  # of the parameters of Adam that `decayed` names
    decayed: tuple[str, ...] = ()  # patterns of dotted names
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.weight_decay) != bool(self.decayed):
            raise ValueError(
                f"weight_decay={self.weight_decay} and decayed={self.decayed} do not go together; "
                "give both, the decay and the names it is for, or neither"
            )

    def _adam_group(self, num_steps: int) -> "optax.GradientTransformation":
        import optax

        falling = self._falling(ADAM_RATE, num_steps)
        decay = optax.add_decayed_weights(self.weight_decay, mask=self._decay_mask)
        return optax.chain(self._adam(), *([decay] if self.decayed else []), falling)

    def _decay_mask(self, params: Any) -> Any:
        import jax

        mask = _by_name(params, lambda name, _: matches(name, self.decayed))
        if not any(jax.tree.leaves(mask)):
            raise ValueError(
                f"decayed={self.decayed} names no parameter of Adam; the others keep their norm, "
                "so name a router, a gate or the like, or add the pattern to by_adam"
            )
        return mask


@dataclass(frozen=True, kw_only=True)
class MuonH(_Hyperball):
    """Marin's MuonH: Muon's direction on matrices, AdamH on the head, Adam on the rest.

    `learning_rate` is the angle, roughly, by which a step turns a matrix; `hyperball` tells how.
    """

    momentum: float = 0.95

    def group_of(self, name: str, ndim: int) -> str:
        if name == HEAD:
            return "adamh"
        return "muonh" if self._is_matrix(name, ndim) else "adam"

    def groups(self, num_steps: int) -> "dict[str, optax.GradientTransformation]":
        import optax

        from marin_dagster.training.hyperball import hyperball, muon

        def rate(step):
            return self.rates_at(step, num_steps)[RATE]

        return {
            "muonh": optax.chain(muon(self.momentum), hyperball(rate)),
            "adamh": optax.chain(self._adam(), hyperball(rate)),
            "adam": self._adam_group(num_steps),
        }


@dataclass(frozen=True, kw_only=True)
class AdamH(_Hyperball):
    """Marin's AdamH: Adam's direction on matrices and the head, whose norms stay; else Adam."""

    def group_of(self, name: str, ndim: int) -> str:
        return "adamh" if self._is_matrix(name, ndim) else "adam"

    def groups(self, num_steps: int) -> "dict[str, optax.GradientTransformation]":
        import optax

        from marin_dagster.training.hyperball import hyperball

        def rate(step):
            return self.rates_at(step, num_steps)[RATE]

        return {
            "adamh": optax.chain(self._adam(), hyperball(rate)),
            "adam": self._adam_group(num_steps),
        }


def decay_mask(params: Any) -> Any:
    """Marks the leaves that AdamW's decay shrinks: the matrices, by their names."""
    return _by_name(params, lambda name, _: not matches(name, UNDECAYED))


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a dotted name fits one of the patterns, in which `*` stands for anything."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _by_name(params: Any, of: Callable[[str, int], Any]) -> Any:
    import jax

    def value(path, leaf):
        return of(jax.tree_util.keystr(path, simple=True, separator="."), leaf.ndim)

    return jax.tree_util.tree_map_with_path(value, params)
