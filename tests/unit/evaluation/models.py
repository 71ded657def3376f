"""A small model with random weights as a Checkpoint, and small tasks beside it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from marin_dagster.kinds import Checkpoint, Tasks, Tokenizer
from marin_dagster.models.config import ModelConfig, MoEConfig, RoutedConfig
from marin_dagster.recipe import Context, Summary
from tests.unit.data.corpus import TOKENIZER, text

SMALL = MoEConfig(
    hidden_dim=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    expert_dim=8,
    num_experts=4,
    num_experts_per_token=2,
    num_shared_experts=1,
    seq_len=64,
)


@dataclass(frozen=True, kw_only=True)
class RandomModel(Checkpoint):
    """Random weights, with router biases that matter."""

    stage: ClassVar[str] = "checkpoints"
    tokenizer: Tokenizer = TOKENIZER
    chat: bool = False
    model: ModelConfig = SMALL

    def build(self, ctx: Context) -> Summary:
        import equinox as eqx
        import jax

        from marin_dagster.data.tokenizer import load_tokenizer
        from marin_dagster.models.router import with_router_bias
        from marin_dagster.training.model_files import save_model

        tokenizer = load_tokenizer(ctx.path(self.tokenizer))
        model = eqx.filter_jit(self.model.make)(tokenizer.vocab_size, jax.random.key(0))
        if isinstance(self.model, RoutedConfig):
            shape = (self.model.num_layers, self.model.num_experts)
            model = with_router_bias(model, 0.2 * jax.random.normal(jax.random.key(1), shape))
        save_model(model, ctx.out, {"tokenizer": tokenizer.digest, "chat": self.chat})
        return Summary(numbers={})


@dataclass(frozen=True, kw_only=True)
class SmallTasks(Tasks):
    """A task of each kind of request, with `size` examples."""

    stage: ClassVar[str] = "raw"
    size: int = 12
    data_missing: bool = False
    dataset_path: str = "json"

    def build(self, ctx: Context) -> Summary:
        folder = Path(ctx.out, "tasks")
        folder.mkdir(parents=True, exist_ok=True)
        kinds = {
            "choose": ("multiple_choice", "acc", {"doc_to_choice": "choices"}),
            "finish": ("loglikelihood", "acc", {}),
            "write": ("generate_until", "exact_match", WRITE),
        }
        for name, (kind, metric, more) in kinds.items():
            (folder / f"{name}.yaml").write_text(json.dumps(self._task(name, kind, metric, more)))
            rows = [
                {"query": text(i)[:60], "choices": ["red box", "old tree"], "answer": i % 2}
                for i in range(self.size)
            ]
            if not self.data_missing:
                lines = "".join(json.dumps(row) + "\n" for row in rows)
                (folder / f"{name}.jsonl").write_text(lines)
        return Summary(numbers={})

    def _task(self, name: str, kind: str, metric: str, more: dict) -> dict:
        return {
            "task": name,
            "dataset_path": self.dataset_path,
            "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}},
            "test_split": "test",
            "output_type": kind,
            "doc_to_text": "{{query}} found",
            "doc_to_target": "answer" if kind == "multiple_choice" else " {{choices[answer]}}",
            "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True}],
            **more,
        }


WRITE = {"generation_kwargs": {"until": ["\n"], "do_sample": False, "max_gen_toks": 8}}
MODEL = RandomModel(name="random", version="dev")
TASKS = SmallTasks(name="small", version="dev")
