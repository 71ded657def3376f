"""Turns a `SupervisedFineTune` recipe into files, and asks the model a few questions."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from marin_dagster.data.mixture import Rows, check_position
from marin_dagster.data.token_cache import TokenCacheReader
from marin_dagster.data.tokenizer import TextTokenizer, load_tokenizer
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.posttraining.chat import END, render_prompt, show_mask
from marin_dagster.recipe import Context, StageError, Summary
from marin_dagster.training.loop import Run, train
from marin_dagster.training.model_files import load_model, read_config
from marin_dagster.training.outputs import write_checkpoint
from marin_dagster.training.pretrain_build import open_caches, open_mixture
from marin_dagster.training.sampling import generate
from marin_dagster.training.summary import run_numbers, run_plots, tracker_note

if TYPE_CHECKING:
    from marin_dagster.posttraining.sft import SupervisedFineTune

ANSWER_TOKENS = 96


def build_fine_tuned(recipe: "SupervisedFineTune", ctx: Context) -> Summary:
    """Trains on the assistant's tokens, saves and describes the model."""
    tokenizer = load_tokenizer(ctx.path(recipe.tokenizer))
    model, config = load_model(ctx.path(recipe.checkpoint))
    _refuse_other_tokenizer(recipe, ctx, tokenizer)
    name = recipe.conversations.address
    readers = open_caches(ctx, [recipe.conversations], tokenizer)
    share = supervised_share(readers[name], name)
    held_out = [recipe.validation] if recipe.validation else []
    validation = {
        key: Rows(reader, config.seq_len)
        for key, reader in open_caches(ctx, held_out, tokenizer).items()
    }
    mixture = open_mixture(
        readers, {name: 1.0}, config.seq_len, recipe.batch_size, recipe.seed, recipe.num_steps
    )
    run = Run(
        optimizer=recipe.optimizer,
        num_steps=recipe.num_steps,
        z_loss_weight=recipe.z_loss_weight,
        steps_per_eval=recipe.steps_per_eval,
        steps_per_checkpoint=recipe.steps_per_checkpoint,
    )
    model, history, tracker = train(
        ctx,
        model,
        mixture,
        validation,
        recipe.batch_size,
        run,
        position=mixture.position,
        check=partial(check_position, mixture=mixture),
    )
    write_checkpoint(ctx, ctx.out, model, tokenizer, steps=recipe.num_steps, chat=True)
    answers = ask(model, recipe.sample_questions, tokenizer)
    numbers: dict[str, Any] = run_numbers(history, config, tokenizer.vocab_size)
    numbers["supervised_share"] = round(share, 4)
    if answers:
        ended = sum(row["stopped"] for row in answers)
        numbers["stopped_share"] = round(ended / len(answers), 4)
    return Summary(
        numbers=numbers,
        tables={"Answers": answers} if answers else {},
        plots=run_plots(history, {}),
        notes={
            "One conversation with its loss mask": _shown(readers[name], tokenizer),
            **tracker_note(tracker),
        },
    )


def supervised_share(reader: TokenCacheReader, address: str) -> float:
    """The share of tokens with loss; raises StageError when it is 0 or 1 or unknown."""
    if reader.weights is None:
        raise StageError(
            "bad_input",
            f"{address} has no loss weights, so every token would be trained on; tokenize "
            "conversations, not documents",
        )
    share = float(np.mean(np.asarray(reader.weights) > 0))
    if not 0 < share < 1:
        raise StageError(
            "bad_input",
            f"supervised share of {address} is {share:g}, it must lie between 0 and 1: the loss "
            "would fall on no token or on every token; check the roles of the messages",
        )
    return share


def ask(
    model: LanguageModel, questions: Sequence[str], tokenizer: TextTokenizer
) -> list[dict[str, Any]]:
    """Asks each question alone, greedily; `stopped` says whether the answer ended by itself."""
    end = tokenizer.token_id(END)
    prompts = [render_prompt([{"role": "user", "content": text}], tokenizer) for text in questions]
    answers = generate(model, prompts, ANSWER_TOKENS, (end, tokenizer.eos_id))
    return [
        {
            "question": question,
            "answer": tokenizer.decode(answer),
            "stopped": answer[-1] in (end, tokenizer.eos_id),
        }
        for question, answer in zip(questions, answers, strict=True)
    ]


def _refuse_other_tokenizer(
    recipe: "SupervisedFineTune", ctx: Context, tokenizer: TextTokenizer
) -> None:
    trained_with = read_config(ctx.path(recipe.checkpoint)).get("tokenizer")
    if trained_with != tokenizer.digest:
        raise StageError(
            "bad_input",
            f"{recipe.checkpoint.address} was trained with tokenizer {trained_with}, "
            f"{recipe.tokenizer.address} is {tokenizer.digest}; give the checkpoint's tokenizer",
        )


def _shown(reader: TokenCacheReader, tokenizer: TextTokenizer) -> str:
    weights = reader.document_weights(0)
    assert weights is not None
    return show_mask(reader.document(0).tolist(), weights.tolist(), tokenizer)
