"""Turns our tensors and configurations into those of `Dots1ForCausalLM` and `LlamaForCausalLM`.

Hugging Face stores weights output by input, and every expert by itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from marin_dagster.data.tokenizer import TextTokenizer
from marin_dagster.models.config import ModelConfig, MoEConfig
from marin_dagster.models.dense import DenseConfig
from marin_dagster.posttraining.chat import END
from marin_dagster.recipe import StageError

_PLAIN = {  # ours: theirs, same orientation
    "embedding": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "moe_norm.weight": "post_attention_layernorm.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
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
    "mlp.down": "mlp.down_proj.weight",
}
_GATE_UP = {"moe.shared.gate_up": "mlp.shared_experts.", "mlp.gate_up": "mlp."}


def model_config(config: ModelConfig, tokenizer: TextTokenizer) -> dict[str, Any]:
    """`config.json`; the RoPE base stands where readers before and since version 5 look for it.

    Raises StageError for a model that no architecture of transformers computes.
    """
    if isinstance(config, DenseConfig):
        own = _llama(config)
    elif isinstance(config, MoEConfig):
        own = _dots1(config)
    else:
        raise StageError(
            "bad_input",
            f"model={type(config).__name__} is computed by no architecture of transformers; export "
            "a model of a MoEConfig or a DenseConfig",
        )
    return {
        **own,
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": config.hidden_dim,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.seq_len,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": [tokenizer.eos_id, tokenizer.token_id(END)],
        "pad_token_id": tokenizer.pad_id,
        "dtype": "float32",
    }


def _llama(config: DenseConfig) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "intermediate_size": config.intermediate_dim,
        "mlp_bias": False,
    }


def _dots1(config: MoEConfig) -> dict[str, Any]:
    if config.expert_latent_dim is not None:
        raise StageError(
            "bad_input",
            f"expert_latent_dim={config.expert_latent_dim}: experts at a width of their own are "
            "computed by no architecture of transformers; export a model without it",
        )
    kinds = [
        "full_attention" if window is None else "sliding_attention" for window in config.windows
    ]
    return {
        "architectures": ["Dots1ForCausalLM"],
        "model_type": "dots1",
        "intermediate_size": config.expert_dim,  # of dense layers; there are none
        "moe_intermediate_size": config.expert_dim,
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
        "sliding_window": config.sliding_window,
        "layer_types": kinds,
    }


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
    elif inner in _GATE_UP:
        gate, up = np.split(tensor, 2, axis=-1)
        yield f"{layer}{_GATE_UP[inner]}gate_proj.weight", gate.T
        yield f"{layer}{_GATE_UP[inner]}up_proj.weight", up.T
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
            "error", f"tensor {name!r} has no place in Dots1ForCausalLM or LlamaForCausalLM; add it"
        )
