"""Turns a `Pretrain` recipe into files: reads the caches, runs the loop, writes the checkpoint."""

import os
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax

from marin_dagster.data.mixture import Mixture, Rows, check_position
from marin_dagster.data.token_cache import TokenCacheReader
from marin_dagster.data.tokenizer import TextTokenizer, load_tokenizer
from marin_dagster.kinds import TokenCache
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.recipe import Context, Recipe, StageError, Summary
from marin_dagster.training.checkpoint import Origin
from marin_dagster.training.evaluate import unigram_entropy
from marin_dagster.training.loop import RESUME, Run, resume_roots, train
from marin_dagster.training.metrics import read_events
from marin_dagster.training.outputs import METRICS, Snapshots, write_checkpoint
from marin_dagster.training.phases import stage_starts
from marin_dagster.training.points import permanent
from marin_dagster.training.sampling import generate
from marin_dagster.training.summary import router_table, run_numbers, run_plots, tracker_note

if TYPE_CHECKING:
    from marin_dagster.training.pretrain import Pretrain

SAMPLE_TOKENS, SAMPLE_TEMPERATURE = 96, 0.7


def build_pretrained(recipe: "Pretrain", ctx: Context) -> Summary:
    """Trains, saves and describes the model."""
    tokenizer = load_tokenizer(ctx.path(recipe.tokenizer))
    readers = open_caches(ctx, recipe.sources, tokenizer)
    held_out = open_caches(ctx, recipe.validation, tokenizer)
    seq_len = recipe.model.seq_len
    stages = zip(stage_starts(recipe.stages, recipe.num_steps), recipe.stages, strict=True)
    mixture = open_mixture(
        readers,
        _weights(recipe.data),
        seq_len,
        recipe.batch_size,
        recipe.seed,
        recipe.num_steps,
        stages=[(step, _weights(stage.data)) for step, stage in stages],
        contexts=[(step, phase.seq_len) for step, phase in recipe.course],
    )
    validation = {name: Rows(reader, seq_len) for name, reader in held_out.items()}
    key = jax.random.key(recipe.seed)
    model = recipe.model.make(tokenizer.vocab_size, key)
    snapshots = Snapshots(recipe, ctx, tokenizer)
    snapshots.publish_left_over()
    model, history, tracker = train(
        ctx,
        model,
        mixture,
        validation,
        recipe.batch_size,
        _run_of(recipe, ctx),
        snapshots.keep,
        mixture.position,
        partial(check_position, mixture=mixture),
    )
    write_checkpoint(ctx, ctx.out, model, tokenizer, steps=recipe.num_steps)
    for point in permanent(resume_roots(ctx), recipe.fingerprint):
        name = os.path.basename(point.folder)
        shutil.copytree(point.folder, os.path.join(ctx.out, RESUME, name))

    entropy = _mixed_entropy(readers, mixture.requested_shares())
    prompts = [tokenizer.encode_prompt(text) for text in recipe.sample_prompts]
    samples = sample_texts(model, prompts, tokenizer, (tokenizer.eos_id,))
    return Summary(
        numbers={
            **run_numbers(history, recipe.model, tokenizer.vocab_size),
            "unigram_entropy": round(entropy, 5),
            "vocab_size": tokenizer.vocab_size,
        },
        tables={"Data": mixture.table(), **router_table(history)},
        plots=run_plots(history, {"unigram entropy": entropy}),
        notes={**_extension_note(ctx), "Samples": samples, **tracker_note(tracker)},
    )


def open_caches(
    ctx: Context, caches: Sequence[Recipe], tokenizer: TextTokenizer
) -> dict[str, TokenCacheReader]:
    """Opens caches by address; refuses those of another tokenizer."""
    readers = {}
    for cache in caches:
        reader = readers[cache.address] = TokenCacheReader(ctx.path(cache))
        if reader.meta["tokenizer"] != tokenizer.digest:
            raise StageError(
                "bad_input",
                f"{cache.address} was made by tokenizer {reader.meta['tokenizer']}, this run's is "
                f"{tokenizer.digest}; tokenize it with the tokenizer of this run",
            )
    return readers


def open_mixture(
    readers: Mapping[str, TokenCacheReader],
    weights: Mapping[str, float],
    seq_len: int,
    batch_size: int,
    seed: int,
    num_steps: int,
    stages: Sequence[tuple[int, Mapping[str, float]]] = (),
    contexts: Sequence[tuple[int, int]] = (),
) -> Mixture:
    """Opens a mixture; what it refuses is a bad input."""
    try:
        return Mixture(
            readers,
            weights,
            seq_len,
            batch_size,
            seed,
            num_steps,
            stages=stages,
            contexts=contexts,
        )
    except ValueError as error:
        raise StageError("bad_input", str(error)) from error


def sample_texts(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    tokenizer: TextTokenizer,
    stop_ids: Sequence[int],
) -> str:
    """Returns Markdown with a greedy and a drawn continuation of every prompt."""
    blocks = []
    for title, temperature in (("greedy", 0.0), (f"T {SAMPLE_TEMPERATURE}", SAMPLE_TEMPERATURE)):
        answers = generate(model, prompts, SAMPLE_TOKENS, stop_ids, temperature)
        for prompt, answer in zip(prompts, answers, strict=True):
            text = tokenizer.visible([*prompt, *answer])
            blocks.append(f"**{title}**\n\n````text\n{text}\n````")
    return "\n\n".join(blocks)


def _run_of(recipe: "Pretrain", ctx: Context) -> Run:
    return Run(
        optimizer=recipe.optimizer,
        num_steps=recipe.num_steps,
        z_loss_weight=recipe.z_loss_weight,
        balance=recipe.balance,
        steps_per_eval=recipe.steps_per_eval,
        steps_per_checkpoint=recipe.steps_per_checkpoint,
        minutes_per_checkpoint=recipe.minutes_per_checkpoint,
        keep_checkpoints=recipe.keep_checkpoints,
        recovery=recipe.recovery,
        snapshots=recipe.snapshots,
        origin=_origin(recipe, ctx),
    )


def _origin(recipe: "Pretrain", ctx: Context) -> Origin | None:
    base = recipe.extends
    if base is None:
        return None
    folder = os.path.join(ctx.path(base), RESUME)
    return Origin(base.address, folder, base.fingerprint, recipe.first_step)


def _extension_note(ctx: Context) -> dict[str, str]:
    for event in read_events(os.path.join(ctx.out, METRICS)):
        if event["event"] == "extend":
            return {"Extension": f"after step {event['step']} of {event['run']}: {event['how']}"}
    return {}


def _weights(data: Sequence[tuple[TokenCache, float]]) -> dict[str, float]:
    return {cache.address: weight for cache, weight in data}


def _mixed_entropy(readers: Mapping[str, TokenCacheReader], shares: Mapping[str, float]) -> float:
    """Unigram entropy of each source, averaged by share: a bound below that of the mixture."""
    return sum(unigram_entropy(reader) * shares[name] for name, reader in readers.items())
