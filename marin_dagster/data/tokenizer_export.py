"""Turns a sentencepiece tokenizer into the files that `transformers` and `tokenizers` load.

The pieces hold real spaces, so that no normalizer stands between text and pieces and a literal
U+2581 falls back to its bytes, as it does in `TextTokenizer`.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from marin_dagster.data.tokenizer import (
    BOS,
    CONTROL_PIECES,
    EOS,
    NUM_BYTES,
    PAD,
    SPACE_MARK,
    UNK,
    TextTokenizer,
)
from marin_dagster.posttraining.chat import CHAT_TEMPLATE

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)


def write_tokenizer_files(folder: str, tokenizer: TextTokenizer) -> None:
    """Writes `tokenizer.json` and its configuration beside the sentencepiece model."""
    _write_json(folder, "tokenizer.json", tokenizer_json(tokenizer))
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "unk_token": UNK}
    write_configuration(folder, special)


def write_configuration(folder: str, special: Mapping[str, str]) -> None:
    """Writes what stands beside `tokenizer.json`, with the chat template; `special` by role."""
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **special,
            "add_bos_token": True,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
        "special_tokens_map.json": dict(special),
    }
    for name, content in files.items():
        _write_json(folder, name, content)


def _write_json(folder: str, name: str, content: Mapping[str, Any]) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False, indent=1)
        file.write("\n")


def tokenizer_json(tokenizer: TextTokenizer) -> dict[str, Any]:
    """The tokenizer as Hugging Face's `tokenizers` writes it; `<s>` opens every encoded text."""
    pieces = [tokenizer.piece(i).replace(SPACE_MARK, " ") for i in range(tokenizer.vocab_size)]
    bos = {"SpecialToken": {"id": BOS, "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added_token(i, piece) for i, piece in enumerate(CONTROL_PIECES)],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                bos,
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {BOS: {"id": BOS, "ids": [tokenizer.bos_id], "tokens": [BOS]}},
        },
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": UNK,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": _merges(pieces),
        },
    }


def _added_token(token: int, piece: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token, "content": piece, **flags, "special": True}


def _merges(pieces: list[str]) -> list[tuple[str, str]]:
    """Pairs to merge, best first: sentencepiece ranks merges by the id of the piece they make."""
    learned = pieces[len(CONTROL_PIECES) + NUM_BYTES :]
    known = set(learned)
    return [
        (piece[:cut], piece[cut:])
        for piece in learned
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]
