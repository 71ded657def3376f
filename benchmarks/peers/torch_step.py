"""Turns sizes into a training step of transformers' Qwen2-MoE in torch, on a CPU."""

from typing import Any

import numpy as np
import torch
import transformers
from serve import Peer, serve


def start(sizes: dict[str, Any]) -> Peer:
    torch.manual_seed(0)
    shared = sizes["expert_dim"] * sizes["num_shared_experts"]
    config = transformers.Qwen2MoeConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_dim"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        num_key_value_heads=sizes["num_kv_heads"],
        num_experts=sizes["num_experts"],
        num_experts_per_tok=sizes["num_experts_per_token"],
        moe_intermediate_size=sizes["expert_dim"],
        shared_expert_intermediate_size=shared,
        max_position_embeddings=sizes["seq_len"],
        tie_word_embeddings=False,
        use_cache=False,
    )
    model = transformers.Qwen2MoeForCausalLM(config)
    model.set_experts_implementation(sizes["torch_experts"])
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=sizes["learning_rate"],
        betas=(0.9, 0.95),
        weight_decay=0.1,
        fused=True,
    )

    def step(rows: np.ndarray) -> float:
        tokens = torch.from_numpy(rows).long()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Peer(step, {"versions": versions, "parameters": parameters})


if __name__ == "__main__":
    serve(start)
