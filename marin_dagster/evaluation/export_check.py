"""Turns an exported folder into a verdict: `transformers` must compute what we compute."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from marin_dagster.data.tokenizer import TextTokenizer
from marin_dagster.data.tokenizer_gate import odd_strings
from marin_dagster.evaluation.scoring import in_float32
from marin_dagster.models.language_model import LanguageModel
from marin_dagster.posttraining.chat import render, render_prompt
from marin_dagster.recipe import StageError

TOLERANCE = 1e-4  # largest difference of two float32 logits
NUM_PROMPTS, PROMPT_TOKENS = 8, 64
CHAT = (
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": " Two  spaces, a tab\tand {{ braces }}"},
    {"role": "assistant", "content": "Here:\n\n  done. 日本 👍"},
)


def compare_with_transformers(
    folder: str, model: LanguageModel, tokenizer: TextTokenizer
) -> dict[str, Any]:
    """Loads the folder with `transformers` and returns the largest difference of logits.

    Raises StageError when a tensor is missing or unused, when logits differ by more than TOLERANCE,
    or when the tokenizer or the chat template gives other ids than ours.
    """
    import torch
    import transformers

    _check_ids(transformers.AutoTokenizer.from_pretrained(folder), tokenizer)
    found: Any = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    loaded, info = found
    faults = {key: sorted(map(str, value)) for key, value in info.items() if value}
    if faults:
        raise StageError(
            "error", f"transformers could not place every tensor of {folder}: {faults}"
        )
    length = min(PROMPT_TOKENS, model.config.seq_len)
    prompts = np.random.Generator(np.random.Philox(key=0)).integers(
        0, tokenizer.vocab_size, (NUM_PROMPTS, length), np.int32
    )
    with torch.no_grad():
        theirs = loaded.eval()(input_ids=torch.from_numpy(prompts).long()).logits.numpy()
    ours = np.asarray(_logits(in_float32(model), jax.numpy.asarray(prompts)))
    difference = float(np.abs(ours - theirs).max())
    if not difference <= TOLERANCE:
        raise StageError(
            "error",
            f"logits of the export differ by {difference:g} from the checkpoint's, more than "
            f"{TOLERANCE:g}; the mapping to {type(loaded).__name__} is wrong",
        )
    return {"logits_max_difference": difference, "transformers": transformers.__version__}


@eqx.filter_jit
def _logits(model: LanguageModel, prompts: jax.Array) -> jax.Array:
    with jax.default_matmul_precision("highest"):
        return model.logits(model(prompts)[0])


def _check_ids(loaded: Any, tokenizer: TextTokenizer) -> None:
    for text in odd_strings(tokenizer.control):
        if tokenizer.count_control_spellings(text):
            continue  # transformers reads control pieces out of text; ours never does
        if loaded.encode(text) != tokenizer.encode_prompt(text):
            raise StageError("error", f"the exported tokenizer encodes {text!r} differently")
    ids, weights = render(CHAT, tokenizer)
    theirs = loaded.apply_chat_template(
        list(CHAT), return_dict=True, return_assistant_tokens_mask=True
    )
    prompt = loaded.apply_chat_template(
        list(CHAT[:2]), add_generation_prompt=True, return_dict=True
    )["input_ids"]
    if theirs["input_ids"] != ids or theirs["assistant_masks"] != weights:
        raise StageError("error", "the exported chat template gives other ids or another mask")
    if prompt != render_prompt(CHAT[:2], tokenizer):
        raise StageError("error", "the exported chat template gives another prompt")
