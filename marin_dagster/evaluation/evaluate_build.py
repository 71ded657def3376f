"""Turns a checkpoint, tasks and held-out tokens into `results.json`, samples and a table."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from typing import Any

from lm_eval.evaluator import evaluate as run_lm_eval
from lm_eval.utils import handle_non_serializable

from marin_dagster.data.mixture import Rows
from marin_dagster.data.token_cache import TokenCacheReader
from marin_dagster.data.tokenizer import TextTokenizer, load_tokenizer
from marin_dagster.evaluation.evaluate import Evaluate
from marin_dagster.evaluation.language_model import JaxLanguageModel
from marin_dagster.evaluation.tasks import TaskFile, choose_examples, find_tasks, load_tasks
from marin_dagster.posttraining.chat import CHAT_TEMPLATE
from marin_dagster.recipe import Context, Counts, StageError, Summary
from marin_dagster.training.evaluate import evaluate as held_out_losses
from marin_dagster.training.model_files import load_model, read_config

BOOTSTRAPS = 1_000  # resamples for the standard errors that have no formula
CONFIDENCE_95 = 1.96  # standard errors


def build_report(recipe: Evaluate, ctx: Context) -> Summary:
    """Measures everything; finds out what is missing before the model is loaded."""
    files = find_tasks([ctx.path(tasks) for tasks in recipe.tasks], recipe.task_names)
    tokenizer = load_tokenizer(ctx.path(recipe.tokenizer))
    caches = {cache.key: TokenCacheReader(ctx.path(cache)) for cache in recipe.heldout}
    stored = read_config(ctx.path(recipe.checkpoint))
    _check_tokenizers(recipe, stored["tokenizer"], tokenizer, caches)
    chat = bool(stored.get("chat", False)) if recipe.chat is None else recipe.chat
    model, config = load_model(ctx.path(recipe.checkpoint))
    rows: list[dict[str, Any]] = []
    losses: dict[str, dict[str, float]] = {}
    for name, reader in caches.items():
        ctx.log(f"measuring the loss on {name}: {reader.num_tokens:,} tokens")
        batch_size = max(1, recipe.batch_tokens // config.seq_len)
        found = held_out_losses(model, {name: Rows(reader, config.seq_len)}, batch_size)
        losses[name] = {key.removeprefix("eval/"): value for key, value in found.items()}
    results: dict[str, Any] = {"results": {}}
    if files:
        adapter = JaxLanguageModel(
            model,
            tokenizer,
            seq_len=config.seq_len,
            batch_tokens=recipe.batch_tokens,
            chat=chat,
            seed=recipe.seed,
            progress=lambda done, total: ctx.progress(done, total, unit="requests"),
        )
        results = _run_tasks(recipe, ctx, files, adapter)
        rows = score_table(results)
    results["heldout"] = losses
    results["config"] = _provenance(recipe, tokenizer, chat)
    with open(os.path.join(ctx.out, "results.json"), "w", encoding="utf-8") as file:
        json.dump(results, file, indent=1, default=handle_non_serializable, ensure_ascii=False)
        file.write("\n")
    return _summary(rows, losses, results)


def _check_tokenizers(
    recipe: Evaluate,
    trained_with: str,
    tokenizer: TextTokenizer,
    caches: Mapping[str, TokenCacheReader],
) -> None:
    """Refuses ids that the model would read with another meaning."""
    digests = {recipe.checkpoint.address: trained_with}
    digests |= {name: reader.meta["tokenizer"] for name, reader in caches.items()}
    for name, digest in digests.items():
        if digest != tokenizer.digest:
            raise StageError(
                "bad_input",
                f"{name} was made with tokenizer {digest}, {recipe.tokenizer.address} is "
                f"{tokenizer.digest}; evaluate with the tokenizer of the training",
            )


def _run_tasks(
    recipe: Evaluate,
    ctx: Context,
    files: Mapping[str, TaskFile],
    adapter: JaxLanguageModel,
) -> dict[str, Any]:
    """lm-eval's results, without what differs from run to run; samples go to files."""
    loaded = load_tasks(files, ctx.work, recipe.num_fewshot, recipe.seed)
    chosen = choose_examples(loaded, recipe.limit, recipe.seed)
    results = run_lm_eval(
        adapter,
        loaded,
        samples=chosen,
        bootstrap_iters=BOOTSTRAPS,
        apply_chat_template=adapter.chat,
        fewshot_as_multiturn=adapter.chat,
    )
    assert results is not None
    kept: dict[str, Any] = dict(results)
    samples = kept.pop("samples")
    for name, rows in samples.items():
        with open(os.path.join(ctx.out, f"samples_{name}.jsonl"), "w", encoding="utf-8") as file:
            for row in sorted(rows, key=lambda row: (row["filter"], row["doc_id"])):
                file.write(json.dumps(row, default=handle_non_serializable, ensure_ascii=False))
                file.write("\n")
    kept["chance"] = {name: chance_level(rows) for name, rows in samples.items()}
    for name, settings in kept["configs"].items():
        relative = {
            split: [os.path.basename(path) for path in paths]
            for split, paths in files[name].data_files.items()
        }
        settings["metadata"].pop("config_source", None)  # a path of this machine
        settings["dataset_kwargs"] = {**files[name].options, "data_files": relative}
    return kept


def chance_level(samples: list[dict[str, Any]]) -> float | None:
    """Accuracy of guessing: the mean of one over the number of choices, None without choices."""
    scored = [row for row in samples if row["filter"] == samples[0]["filter"]]
    if not all("acc" in row and len(row["resps"]) > 1 for row in scored):
        return None
    return sum(1 / len(row["resps"]) for row in scored) / len(scored)


def score_table(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row per task and metric: the value, its standard error and 95 % interval, and chance."""
    table = []
    for task, values in results["results"].items():
        for key, value in values.items():
            metric, _, chosen = key.partition(",")
            if not chosen or metric.endswith("_stderr") or not isinstance(value, (int, float)):
                continue
            error = values.get(f"{metric}_stderr,{chosen}")
            known = isinstance(error, (int, float)) and math.isfinite(error)
            chance = results["chance"].get(task) if metric in ("acc", "acc_norm") else None
            row = {"task": task, "metric": metric if chosen == "none" else key}
            row["value"] = float(value)
            row["stderr"] = float(error) if known else None
            row["95 %"] = _interval(value, error) if known else None
            row["chance"] = chance
            row["examples"] = results["n-samples"][task]["effective"]
            table.append(row)
    return table


def _interval(value: float, error: float) -> str:
    return f"{value - CONFIDENCE_95 * error:.4f} to {value + CONFIDENCE_95 * error:.4f}"


def _provenance(recipe: Evaluate, tokenizer: TextTokenizer, chat: bool) -> dict[str, Any]:
    """What was measured with what, by address and fingerprint."""
    return {
        "model": recipe.checkpoint.address,
        "model_fingerprint": recipe.checkpoint.fingerprint,
        "tokenizer": recipe.tokenizer.address,
        "tokenizer_digest": tokenizer.digest,
        "tasks": {tasks.address: tasks.fingerprint for tasks in recipe.tasks},
        "heldout": {cache.address: cache.fingerprint for cache in recipe.heldout},
        "bos": "exactly one, before every request",
        "chat_template_sha256": (
            hashlib.sha256(CHAT_TEMPLATE.encode()).hexdigest() if chat else None
        ),
        "dtype": "float32",
        "batch_tokens": recipe.batch_tokens,
        "limit": recipe.limit,
        "random_seed": recipe.seed,
        "fewshot_seed": recipe.seed,
        "bootstrap_iters": BOOTSTRAPS,
    }


def _summary(
    rows: list[dict[str, Any]],
    losses: Mapping[str, Mapping[str, float]],
    results: Mapping[str, Any],
) -> Summary:
    numbers: dict[str, Any] = {f"{row['task']}/{row['metric']}": row["value"] for row in rows}
    for name, found in losses.items():
        numbers |= {f"{name}/{key}": value for key, value in found.items()}
    sizes = results.get("n-samples", {}).values()
    original = sum(size["original"] for size in sizes)
    scored = sum(size["effective"] for size in sizes)
    counts = Counts(
        unit="examples", read=original, kept=scored, dropped={"over_limit": original - scored}
    )
    tables: dict[str, Any] = {"Scores": rows} if rows else {}
    if losses:
        tables["Held-out loss"] = [{"cache": name, **found} for name, found in losses.items()]
    return Summary(numbers=numbers, counts=counts if rows else None, tables=tables)
