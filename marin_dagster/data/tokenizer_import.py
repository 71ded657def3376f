"""Turns a tokenizer that others trained (`tokenizer.json`) into one of ours, with equal ids."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from marin_dagster.data.tokenizer import CHAT_PIECES, IMPORTED_FILE, PAD, TextTokenizer
from marin_dagster.kinds import Tokenizer
from marin_dagster.recipe import Context, StageError, Summary

if TYPE_CHECKING:
    import numpy as np

CONFIGURATIONS = ("tokenizer_config.json", "special_tokens_map.json")
ROLES = ("bos", "eos", "pad")


@dataclass(frozen=True, kw_only=True)
class ImportTokenizer(Tokenizer):
    """Takes in a tokenizer of the Hugging Face hub, or of a local folder, and gates it.

    Text gets the ids that it has there. Control pieces of chats, and one for padding, are added
    behind the vocabulary where they are missing; the chat template is ours.
    """

    stage: ClassVar[str] = "tokenizers"

    repo: str  # "owner/name", or a local folder, with a `tokenizer.json`
    revision: str  # commit or tag: a branch moves. Not used for a local folder
    bos: str | None = None  # the piece that opens a text; None: as its configuration says
    eos: str | None = None  # the piece that closes a text
    pad: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.revision:
            raise ValueError(
                f"revision='' of {self.address} is empty; name a commit of {self.repo}, so that "
                "the same recipe reads the same files"
            )

    def build(self, ctx: Context) -> Summary:
        from marin_dagster.data.tokenizer_export import write_configuration
        from marin_dagster.data.tokenizer_gate import check_round_trip, example_splits

        folder = self._fetched(ctx.placement.hub_token)
        loaded = _read(folder, self.address)
        named = self._named(folder, loaded)
        missing = [p for p in (named["pad"], *CHAT_PIECES) if loaded.token_to_id(p) is None]
        loaded.add_special_tokens([*dict.fromkeys([*named.values(), *CHAT_PIECES])])
        _open_with(loaded, named["bos"])
        loaded.save(os.path.join(ctx.out, IMPORTED_FILE))
        write_configuration(ctx.out, {f"{role}_token": named[role] for role in ROLES})
        tokenizer = ImportedTokenizer(ctx.out)
        return Summary(
            numbers={
                "vocab_size": tokenizer.vocab_size,
                "added_pieces": len(missing),
                "control_pieces": len(tokenizer.control),
                "round_trip_strings": check_round_trip(tokenizer),
                **named,
            },
            tables={"Example splits": example_splits(tokenizer)},
        )

    def _fetched(self, token: str | None) -> str:
        """The local folder with the tokenizer's files."""
        if os.path.isdir(self.repo):
            return self.repo
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError

        names = [IMPORTED_FILE, *CONFIGURATIONS]
        try:
            return snapshot_download(
                self.repo, revision=self.revision, allow_patterns=names, token=token
            )
        except (OSError, ValueError, HfHubHTTPError) as error:
            raise StageError(
                "bad_input",
                f"{self.address}: repo={self.repo!r} at revision={self.revision!r} cannot be read "
                f"({type(error).__name__}: {error}); check both, and that this machine reaches "
                "huggingface.co (a gated model needs a token); or download it elsewhere and give "
                "its folder as repo",
            ) from error

    def _named(self, folder: str, loaded: Any) -> dict[str, str]:
        """The pieces that open, close and fill up a text."""
        told = _configuration(folder)
        named = {role: getattr(self, role) or told.get(f"{role}_token", "") for role in ROLES}
        named["pad"] = named["pad"] or PAD
        for role in ("bos", "eos"):
            if not named[role] or loaded.token_to_id(named[role]) is None:
                special = [one.content for one in loaded.get_added_tokens_decoder().values()]
                raise StageError(
                    "bad_input",
                    f"{role}={named[role]!r} of {self.address} is not in the vocabulary of "
                    f"{self.repo}; set {role} to a piece of it, such as one of {special[:8]}",
                )
        return named


class ImportedTokenizer(TextTokenizer):
    """A tokenizer of the library `tokenizers`; text that spells its special tokens stays text."""

    def __init__(self, folder: str):
        import tokenizers
        import xxhash

        with open(os.path.join(folder, IMPORTED_FILE), "rb") as file:
            content = file.read()
        self._tokenizer: Any = tokenizers.Tokenizer.from_str(content.decode())
        self._tokenizer.encode_special_tokens = True
        added = self._tokenizer.get_added_tokens_decoder()
        told = _configuration(folder)
        super().__init__(
            digest=xxhash.xxh3_128_hexdigest(content),
            vocab_size=1 + max(self._tokenizer.get_vocab().values()),
            control={one.content: token for token, one in added.items() if one.special},
            bos=told["bos_token"],
            eos=told["eos_token"],
            pad=told["pad_token"],
        )

    def token_id(self, piece: str) -> int:
        found = self._tokenizer.token_to_id(piece)
        if found is None:
            raise KeyError(f"piece {piece!r} is not in this vocabulary of {self.vocab_size}")
        return found

    def encode_batch(self, texts: Sequence[str]) -> list["np.ndarray"]:
        import numpy as np

        try:
            found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except (TypeError, UnicodeEncodeError) as error:
            raise ValueError(
                f"a text cannot be encoded as UTF-8 ({error}); pass it through clean_text"
            ) from error
        return [np.array(one.ids, np.uint32) for one in found]

    def decode(self, ids: "Sequence[int] | np.ndarray") -> str:
        plain = [int(token) for token in ids if not self.is_control(int(token))]
        return self._tokenizer.decode(plain, skip_special_tokens=False)

    def piece(self, token: int) -> str:
        return self._tokenizer.id_to_token(int(token)) or ""


def _read(folder: str, address: str) -> Any:
    import tokenizers

    path = os.path.join(folder, IMPORTED_FILE)
    if not os.path.isfile(path):
        raise StageError(
            "bad_input",
            f"{address}: {path} is missing; load the tokenizer with transformers and save it with "
            "save_pretrained, which writes the file",
        )
    try:
        loaded = tokenizers.Tokenizer.from_file(path)
    except Exception as error:
        raise StageError(
            "bad_input", f"{address}: {path} is not a tokenizer ({error}); get it again"
        ) from error
    loaded.no_truncation()
    loaded.no_padding()
    return loaded


def _configuration(folder: str) -> dict[str, str]:
    """Special tokens by role, as `transformers` writes them: a string, or an object with one."""
    found: dict[str, str] = {}
    for name in reversed(CONFIGURATIONS):
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8") as file:
                told = json.load(file)
            found |= {key: _content(told[key]) for key in told if _content(told[key])}
    return found


def _content(value: Any) -> str:
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _open_with(loaded: Any, bos: str) -> None:
    """Has the tokenizer itself open a text with `bos`, as every reader of ours does."""
    from tokenizers.processors import TemplateProcessing

    token = loaded.token_to_id(bos)
    loaded.post_processor = TemplateProcessing(
        single=[bos, "$A:0"], pair=[bos, "$A:0", "$B:1"], special_tokens=[(bos, token)]
    )
