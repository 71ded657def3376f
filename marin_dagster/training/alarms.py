"""Turns rows of metrics into alarms: lines in the log and events among the metrics."""

from collections.abc import Callable, Mapping

from marin_dagster.training.hyperball import DRIFT_LIMIT

UNEVEN, UNEVEN_STEPS = 3.0, 50  # an expert at three fair shares for fifty steps is an alarm


class Alarms:
    """Watches what goes wrong without stopping a run, and says each once as long as it lasts.

    `say(event, message)` gets an expert that most tokens of a layer choose, and matrices whose
    norms move although the optimizer is to keep them.
    """

    def __init__(self, say: Callable[[str, str], None]):
        self._say = say
        self._uneven = 0  # steps in a row
        self._drifts = False

    def look(self, step: int, metrics: Mapping[str, float]) -> None:
        """Looks at the row of a step."""
        load = metrics.get("moe/max_load_ratio", 0.0)
        self._uneven = self._uneven + 1 if load > UNEVEN else 0
        if self._uneven == UNEVEN_STEPS:
            layers = {name: value for name, value in metrics.items() if _is_load_of_layer(name)}
            worst = max(layers, key=layers.__getitem__, default="moe/max_load_ratio")
            self._say(
                "uneven_experts",
                f"alarm: an expert took {load:.1f} fair shares of the tokens for {UNEVEN_STEPS} "
                f"steps, up to step {step} ({worst}); look at the router's learning rate and "
                "whether `balance` is on",
            )
        drift = metrics.get("optim/norm_drift", 0.0)
        if drift > DRIFT_LIMIT and not self._drifts:
            self._say(
                "norm_drift",
                f"alarm: the norm of a matrix is {drift:.2g} off the one it started with at step "
                f"{step}, the limit is {DRIFT_LIMIT:g}; the optimizer is to keep it, so something "
                "else changes the weights",
            )
        self._drifts = drift > DRIFT_LIMIT


def _is_load_of_layer(name: str) -> bool:
    return name.startswith("moe/layer_") and name.endswith("/max_load_ratio")
