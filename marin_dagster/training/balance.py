"""Turns the wish for even experts into the means: a bias, or losses with their weights."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Balance:
    """How a run keeps its experts evenly loaded.

    Quantile balancing sets the routers' biases after every step and needs no loss. The weights
    are those of losses of every layer, added up over layers, which enter what is minimised and
    never the reported cross entropy. All are over the valid tokens of the global batch:

    - load balance: E · Σ share of the assignments · mean softmax (Fedus et al. 2021). With
      micro-batches it costs a second forward pass, because the shares are of the whole batch;
    - sequence balance: the same in every row, with normalised sigmoid scores, averaged over rows
      by their tokens (DeepSeek-AI 2024);
    - router z: the mean of log² of the softmax's normaliser (Zoph et al. 2022).
    """

    quantile: bool = True
    load_balance_loss_weight: float = 0.0
    sequence_balance_loss_weight: float = 0.0
    router_z_loss_weight: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "quantile" and not 0 <= value < float("inf"):
                raise ValueError(
                    f"{field.name}={value} is not a weight from 0 on; use 0 for no such loss"
                )
