"""Turns a `Pretrain` recipe into files: reads the caches, runs the loop, writes the checkpoint."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from marin_dagster.data.mixture import Mixture, Rows
from marin_dagster.data.token_cache import TokenCacheReader
from marin_dagster.data.tokenizer import TextTokenizer, load_tokenizer
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.recipe import Context, Recipe, StageError, Summary
from marin_dagster.training.evaluate import unigram_entropy
from marin_dagster.training.loop import Run, train
from marin_dagster.training.outputs import Snapshots, write_checkpoint
from marin_dagster.training.sampling import generate
from marin_dagster.training.summary import run_numbers, run_plots, tracker_note

if TYPE_CHECKING:
    from marin_dagster.training.pretrain import Pretrain

SAMPLE_TOKENS, SAMPLE_TEMPERATURE = 96, 0.7


def build_pretrained(recipe: "Pretrain", ctx: Context) -> Summary:
    """Trains, saves and describes the model."""
    tokenizer = load_tokenizer(ctx.path(recipe.tokenizer))
    readers = open_caches(ctx, [cache for cache, _ in recipe.data], tokenizer)
    held_out = open_caches(ctx, recipe.validation, tokenizer)
    weights = {cache.address: weight for cache, weight in recipe.data}
    seq_len = recipe.model.seq_len
    mixture = open_mixture(
        readers, weights, seq_len, recipe.batch_size, recipe.seed, recipe.num_steps
    )
    validation = {name: Rows(reader, seq_len) for name, reader in held_out.items()}
    key = jax.random.key(recipe.seed)
    model = recipe.model.make(tokenizer.vocab_size, key)
    run = Run(
        optimizer=recipe.optimizer,
        num_steps=recipe.num_steps,
        z_loss_weight=recipe.z_loss_weight,
        balance=recipe.balance,
        steps_per_eval=recipe.steps_per_eval,
        steps_per_checkpoint=recipe.steps_per_checkpoint,
        snapshots=recipe.snapshots,
    )
    snapshots = Snapshots(recipe, ctx, tokenizer)
    snapshots.publish_left_over()
    model, history, tracker = train(
        ctx, model, mixture, validation, recipe.batch_size, run, snapshots.keep
    )
    write_checkpoint(ctx, ctx.out, model, tokenizer, steps=recipe.num_steps)

    entropy = _mixed_entropy(readers, weights)
    prompts = [tokenizer.encode_prompt(text) for text in recipe.sample_prompts]
    samples = sample_texts(model, prompts, tokenizer, (tokenizer.eos_id,))
    return Summary(
        numbers={
            **run_numbers(history, recipe.model, tokenizer.vocab_size),
            "unigram_entropy": round(entropy, 5),
            "vocab_size": tokenizer.vocab_size,
        },
        tables={"Epochs": _epoch_table(mixture, recipe.num_steps)},
        plots=run_plots(history, {"unigram entropy": entropy}),
        notes={"Samples": samples, **tracker_note(tracker)},
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
) -> Mixture:
    """Opens a mixture; what it refuses is a bad input."""
    try:
        return Mixture(readers, weights, seq_len, batch_size, seed, num_steps)
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


def _mixed_entropy(readers: Mapping[str, TokenCacheReader], weights: Mapping[str, float]) -> float:
    """Unigram entropy of each source, averaged by weight: a bound below that of the mixture."""
    total = sum(weights.values())
    return sum(unigram_entropy(reader) * weights[name] / total for name, reader in readers.items())


def _epoch_table(mixture: Mixture, num_steps: int) -> list[dict[str, Any]]:
    return [
        {"source": name, "epochs": round(epochs, 3)}
        for name, epochs in mixture.epochs(num_steps).items()
    ]
