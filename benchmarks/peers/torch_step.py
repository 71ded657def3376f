"""Turns sizes into a training step of transformers' Qwen2-MoE in torch, on a CPU."""

import itertools
from typing import Any

import torch
import transformers
from serve import serve, tokens_of


def start(sizes: dict[str, Any]):
    torch.manual_seed(0)
    config = transformers.Qwen2MoeConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_dim"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        num_key_value_heads=sizes["num_heads"],
        num_experts=sizes["num_experts"],
        num_experts_per_tok=sizes["num_experts_per_token"],
        moe_intermediate_size=sizes["expert_dim"],
        shared_expert_intermediate_size=sizes["expert_dim"] * sizes["num_shared_experts"],
        intermediate_size=sizes["expert_dim"],
        max_position_embeddings=sizes["seq_len"],
        tie_word_embeddings=False,
        use_cache=False,
    )
    model = transformers.Qwen2MoeForCausalLM(config)
    model.set_experts_implementation(sizes.get("experts", "grouped_mm"))
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    batches = itertools.cycle([torch.from_numpy(rows[:, :-1].copy()) for rows in tokens_of(sizes)])

    def step() -> float:
        tokens = next(batches)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return step, {
        "versions": versions,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


if __name__ == "__main__":
    serve(start)
