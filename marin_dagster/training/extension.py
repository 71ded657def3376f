"""Turns the schedule of a run so far and that of a resumed one into permission to go on.

A learning rate that would jump because the number of steps or the schedule changed is refused until
an `Extension` says how it goes on.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from marin_dagster.recipe import StageError, payload_diff
from marin_dagster.training.optimizer import OptimizerConfig
from marin_dagster.training.schedule import (
    Cosine,
    Extension,
    Linear,
    Schedule,
    WarmupStableDecay,
)


class Join(NamedTuple):
    """The learning rates of the last step before a resume, and of the first one after it."""

    before: float
    after: float


def describe(optimizer: OptimizerConfig, num_steps: int) -> dict[str, Any]:
    """What a resume point keeps of the optimizer and the length of its run, as JSON."""
    return {"num_steps": num_steps, "optimizer": _encode(optimizer)}


def check_extension(
    stored: Mapping[str, Any], optimizer: OptimizerConfig, num_steps: int, step: int
) -> str:
    """Says how the learning rate goes on after `step` steps of a run that `stored` describes.

    Raises StageError that lists the differences, and both learning rates, when the run was another
    one and `optimizer.schedule` is not an `Extension` of it.
    """
    now = describe(optimizer, num_steps)
    rates = join(stored, optimizer, num_steps, step)
    both = f"learning rate {rates.before:.4g} up to step {step}, {rates.after:.4g} after it"
    if stored == now:
        return f"the schedule goes on as planned: {both}"
    schedule = optimizer.schedule
    if isinstance(schedule, Extension) and step >= schedule.at:
        planned = dataclasses.replace(optimizer, schedule=schedule.schedule)
        if stored == describe(planned, schedule.planned_steps):
            return (
                f"the run of {schedule.planned_steps} steps is extended to {num_steps} from step "
                f"{schedule.at} by policy {schedule.policy!r}: {both}"
            )
    rows = payload_diff(dict(stored), now)
    listed = "; ".join(f"{path} {old} → {new}" for path, old, new in rows[:8])
    raise StageError(
        "bad_input",
        f"{step} steps were trained with another schedule or optimizer ({listed}), which would "
        f"give {both}; say how it goes on with schedule=Extension(schedule=<the schedule so far>, "
        f"planned_steps={stored['num_steps']}, at={step}, policy='keep', 'rewarm' or 'decay'), or "
        "start a new run",
    )


def check_extended(
    optimizer: OptimizerConfig, base: OptimizerConfig, planned_steps: int, num_steps: int
) -> Extension:
    """The schedule of a run that goes on where one of `planned_steps` steps with `base` was.

    Raises ValueError that lists the differences when it is not an `Extension` of that one's.
    """
    schedule = optimizer.schedule
    if not isinstance(schedule, Extension):
        raise ValueError(
            "a run that extends another has to say how its learning rate goes on; give the "
            f"optimizer schedule=Extension(schedule={base.schedule}, planned_steps="
            f"{planned_steps}, at=<a step that the other run kept>, policy='keep', 'rewarm' or "
            "'decay')"
        )
    planned = dataclasses.replace(optimizer, schedule=schedule.schedule)
    rows = payload_diff(describe(base, planned_steps), describe(planned, schedule.planned_steps))
    if rows:
        listed = "; ".join(f"{path} {old} → {new}" for path, old, new in rows[:8])
        raise ValueError(f"the run that is extended has another optimizer or length ({listed})")
    if not schedule.at < num_steps:
        raise ValueError(
            f"num_steps={num_steps} is not above at={schedule.at}, where the extension begins"
        )
    return schedule


def join(stored: Mapping[str, Any], optimizer: OptimizerConfig, num_steps: int, step: int) -> Join:
    """The learning rates on both sides of step `step`."""
    was = stored["optimizer"]
    ratio = _schedule(was["schedule"]).ratio(step - 1, stored["num_steps"])
    after = optimizer.learning_rate_at(step, num_steps)
    return Join(before=float(was["learning_rate"] * ratio), after=float(after))


def _encode(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            item.name: _encode(getattr(value, item.name)) for item in dataclasses.fields(value)
        }
        return {"type": type(value).__name__, **fields}
    return [_encode(item) for item in value] if isinstance(value, tuple) else value


def _schedule(stored: Mapping[str, Any]) -> Schedule:
    kinds = {kind.__name__: kind for kind in (WarmupStableDecay, Linear, Cosine, Extension)}
    fields = {name: value for name, value in stored.items() if name != "type"}
    if stored["type"] == Extension.__name__:
        fields["schedule"] = _schedule(fields["schedule"])
    return kinds[stored["type"]](**fields)
