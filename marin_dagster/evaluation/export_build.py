"""Turns a model into safetensors and configuration of `Dots1ForCausalLM`, without torch.

Shapes: D hidden, E experts, F expert dim, V vocabulary; Hugging Face stores output by input.
"""

import importlib.util
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import safetensors.numpy

from marin_dagster.data.tokenizer import MODEL_FILE, TextTokenizer, load_tokenizer
from marin_dagster.data.tokenizer_export import TOKENIZER_FILES
from marin_dagster.evaluation.export import ExportHuggingFace
from marin_dagster.models.config import MoEConfig
from marin_dagster.posttraining.chat import END
from marin_dagster.recipe import Context, StageError, Summary
from marin_dagster.training.checkpoint import load_model, read_config, to_host

WEIGHTS = "model.safetensors"
CHECKED_WITH = ("torch", "transformers")  # the extra `export`
INSTALL = "pip install -c constraints.txt -e '.[export]'"
_PLAIN = {  # ours: theirs, same orientation
    "embedding": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "moe_norm.weight": "post_attention_layernorm.weight",
    "attention.query_norm.weight": "self_attn.q_norm.weight",
    "attention.key_norm.weight": "self_attn.k_norm.weight",
    "moe.router.bias": "mlp.gate.e_score_correction_bias",
}
_TRANSPOSED = {
    "head": "lm_head.weight",
    "attention.query": "self_attn.q_proj.weight",
    "attention.key": "self_attn.k_proj.weight",
    "attention.value": "self_attn.v_proj.weight",
    "attention.out": "self_attn.o_proj.weight",
    "moe.router.weight": "mlp.gate.weight",
    "moe.shared.down": "mlp.shared_experts.down_proj.weight",
}


def build_export(recipe: ExportHuggingFace, ctx: Context) -> Summary:
    """Writes the folder, then has `transformers` read it where it is installed."""
    checkpoint, source = ctx.path(recipe.checkpoint), ctx.path(recipe.tokenizer)
    tokenizer = load_tokenizer(source)
    _check_tokenizer(recipe, read_config(checkpoint), tokenizer)
    model, config = load_model(checkpoint)
    if not isinstance(config, MoEConfig):
        raise StageError(
            "bad_input",
            f"{recipe.checkpoint.address} is a {type(config).__name__}, which no architecture of "
            "transformers computes; export a model of a MoEConfig",
        )
    tensors = hugging_face_tensors(to_host(model))
    path = os.path.join(ctx.out, WEIGHTS)
    safetensors.numpy.save_file(dict(sorted(tensors.items())), path, {"format": "pt"})
    os.chmod(path, 0o644)  # the library leaves it to its owner alone
    _write_json(ctx.out, "config.json", model_config(config, tokenizer))
    _write_json(ctx.out, "generation_config.json", generation_config(tokenizer))
    _write_tokenizer(source, ctx.out, config.seq_len)
    numbers: dict[str, Any] = {
        "tensors": len(tensors),
        "parameters": sum(tensor.size for tensor in tensors.values()),
        "logits_checked": False,
    }
    missing = [name for name in CHECKED_WITH if importlib.util.find_spec(name) is None]
    if missing:
        warning = (
            f"**The exported logits were not checked**: {' and '.join(missing)} not installed. "
            f"Run `{INSTALL}` in the checkout, then build with --force, to compare them."
        )
        ctx.log(warning)
        return Summary(numbers=numbers, notes={"Logits not checked": warning})
    from marin_dagster.evaluation.export_check import compare_with_transformers

    found = compare_with_transformers(ctx.out, model, tokenizer)
    return Summary(numbers={**numbers, "logits_checked": True, **found})


def hugging_face_tensors(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Our tensors under Hugging Face's names and orientation.

    Raises StageError for a tensor that has no place there, and when values get lost or doubled.
    """
    renamed: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        for theirs, part in _place(name, tensor):
            assert theirs not in renamed, theirs
            renamed[theirs] = np.ascontiguousarray(part.astype(np.float32))
    before = sum(tensor.size for tensor in tensors.values())
    after = sum(tensor.size for tensor in renamed.values())
    if before != after:
        raise StageError("error", f"export holds {after} of the model's {before} values")
    return renamed


def model_config(config: MoEConfig, tokenizer: TextTokenizer) -> dict[str, Any]:
    """`config.json`; the RoPE base stands where readers before and since version 5 look for it."""
    return {
        "architectures": ["Dots1ForCausalLM"],
        "model_type": "dots1",
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": config.hidden_dim,
        "intermediate_size": config.expert_dim,  # of dense layers; there are none
        "moe_intermediate_size": config.expert_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "n_routed_experts": config.num_experts,
        "n_shared_experts": config.num_shared_experts,
        "num_experts_per_tok": config.num_experts_per_token,
        "first_k_dense_replace": 0,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": config.routed_scaling_factor,
        "hidden_act": "silu",
        "max_position_embeddings": config.seq_len,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": False,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": [tokenizer.eos_id, tokenizer.token_id(END)],
        "pad_token_id": tokenizer.pad_id,
        "dtype": "float32",
    }


def generation_config(tokenizer: TextTokenizer) -> dict[str, Any]:
    """`generation_config.json`: a text ends at `</s>`, an assistant's turn at `<|end|>`."""
    return {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": [tokenizer.eos_id, tokenizer.token_id(END)],
        "pad_token_id": tokenizer.pad_id,
    }


def _place(name: str, tensor: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Where one of our tensors goes: its name there, and its values as they stand there."""
    layer, inner = "", name
    if name.startswith("layers."):
        _, number, inner = name.split(".", 2)
        layer = f"model.layers.{number}."
    if inner in _PLAIN:
        yield layer + _PLAIN[inner], tensor
    elif inner in _TRANSPOSED:
        yield layer + _TRANSPOSED[inner], tensor.T
    elif inner == "moe.shared.gate_up":
        gate, up = np.split(tensor, 2, axis=-1)
        yield f"{layer}mlp.shared_experts.gate_proj.weight", gate.T
        yield f"{layer}mlp.shared_experts.up_proj.weight", up.T
    elif inner in ("moe.gate_up", "moe.down"):
        for expert, weight in enumerate(tensor):
            into = f"{layer}mlp.experts.{expert}."
            if inner == "moe.down":
                yield f"{into}down_proj.weight", weight.T
            else:
                gate, up = np.split(weight, 2, axis=-1)
                yield f"{into}gate_proj.weight", gate.T
                yield f"{into}up_proj.weight", up.T
    else:
        raise StageError(
            "error", f"tensor {name!r} has no place in Dots1ForCausalLM; add it to the export"
        )


def _check_tokenizer(
    recipe: ExportHuggingFace, stored: Mapping[str, Any], tokenizer: TextTokenizer
) -> None:
    if stored["tokenizer"] != tokenizer.digest:
        raise StageError(
            "bad_input",
            f"{recipe.checkpoint.address} was trained with tokenizer {stored['tokenizer']}, "
            f"{recipe.tokenizer.address} is {tokenizer.digest}; give the checkpoint's tokenizer",
        )


def _write_tokenizer(source: str, out: str, seq_len: int) -> None:
    for name in (MODEL_FILE, *TOKENIZER_FILES):
        shutil.copyfile(os.path.join(source, name), os.path.join(out, name))
    path = os.path.join(out, "tokenizer_config.json")
    with open(path, encoding="utf-8") as file:
        settings = json.load(file)
    _write_json(out, "tokenizer_config.json", {**settings, "model_max_length": seq_len})


def _write_json(folder: str, name: str, content: Mapping[str, Any]) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2, ensure_ascii=False)
        file.write("\n")
