"""Turns documents into a tokenizer, and text into token ids and back without losing a byte."""

import heapq
import io
import itertools
import os
import re
import threading
from abc import ABC, abstractmethod
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from marin_dagster.data.compression import compression_tables, tally_compression
from marin_dagster.data.documents import Document, read_documents
from marin_dagster.kinds import Documents, Tokenizer
from marin_dagster.recipe import Context, Counts, StageError, Summary

if TYPE_CHECKING:
    import numpy as np

MODEL_FILE = "tokenizer.model"
IMPORTED_FILE = "tokenizer.json"  # of a tokenizer without `MODEL_FILE`
UNK, BOS, EOS, PAD = "<unk>", "<s>", "</s>", "<pad>"
CHAT_PIECES = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
CONTROL_PIECES = (UNK, BOS, EOS, PAD, *CHAT_PIECES)  # ids 0 to 7, in this order
SPACE_MARK = "\u2581"  # sentencepiece's stand-in for a space; as text it needs its bytes
NUM_BYTES = 256
LINE_CHARACTERS = 4_000  # longer lines are cut for training; at most 16,000 bytes of UTF-8
SHOWN_DOCUMENTS, SHOWN_CHARACTERS = 2_000, 10_000  # whose compression is told
_WORD = re.compile(r" *[^ ]+| +")
ID_TYPE = "I"  # of ids in memory: 32 bits, unsigned
KNOWN_WORDS = 1 << 20  # whose ids are kept at once
WORD_CHARACTERS = 64  # longer ones are rarely seen again


class TextTokenizer(ABC):
    """Text to ids and back.

    Encoding yields no control ids, whatever the text spells. Decoding inverts it byte for byte.
    """

    def __init__(
        self,
        *,
        digest: str,
        vocab_size: int,
        control: Mapping[str, int],
        bos: str,
        eos: str,
        pad: str,
    ):
        self.digest = digest
        self.vocab_size = vocab_size
        self.control = dict(control)  # ids of the pieces that no text yields
        self.bos_id, self.eos_id, self.pad_id = (control[piece] for piece in (bos, eos, pad))
        self._control_ids = frozenset(control.values())
        self._first = {piece[0] for piece in control}  # characters
        self._spelling = re.compile("|".join(map(re.escape, control)))

    @abstractmethod
    def token_id(self, piece: str) -> int:
        """The id of a piece as it stands in the vocabulary; raises KeyError when it is absent."""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list["np.ndarray"]:
        """Ids of every text as arrays, without control ids. Raises ValueError as `encode` does."""

    @abstractmethod
    def decode(self, ids: "Sequence[int] | np.ndarray") -> str:
        """The text of ids; control ids add nothing, bytes that are not UTF-8 become U+FFFD."""

    @abstractmethod
    def piece(self, token: int) -> str:
        """A piece as it stands in the vocabulary."""

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without control ids. Raises ValueError for a lone surrogate."""
        return self.encode_batch([text])[0].tolist()

    def encode_prompt(self, text: str) -> list[int]:
        """The ids that a model continues: the beginning-of-text id, then the text."""
        return [self.bos_id, *self.encode(text)]

    def is_control(self, token: int) -> bool:
        """Whether no text yields this id."""
        return token in self._control_ids

    def visible(self, ids: Sequence[int]) -> str:
        """The text of ids with the control pieces spelled out: for people, not for encoding."""
        shown, plain = "", []
        for token in ids:
            if self.is_control(token):
                shown += self.decode(plain) + self.piece(token)
                plain = []
            else:
                plain.append(token)
        return shown + self.decode(plain)

    def count_control_spellings(self, text: str) -> int:
        """How often a text spells a control piece, such as `</s>`; it is encoded as plain text."""
        if not any(character in text for character in self._first):
            return 0
        return len(self._spelling.findall(text))


class SentencePieceTokenizer(TextTokenizer):
    """A sentencepiece model with byte fallback, as `train_model` makes it.

    No piece of such a model has a space behind another character, so a text's ids are those of its
    words, one after the other: words are encoded once and remembered. Threads may share it.
    """

    def __init__(self, model: bytes):
        import sentencepiece
        import xxhash

        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._space_mark = [
            self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE_MARK.encode()
        ]
        self._known: dict[str, bytes] = {}  # ids of words, as `ID_TYPE`
        self._lock = threading.Lock()  # of what is known
        super().__init__(
            digest=xxhash.xxh3_128_hexdigest(model),
            vocab_size=self._processor.get_piece_size(),
            control={piece: self.token_id(piece) for piece in CONTROL_PIECES},
            bos=BOS,
            eos=EOS,
            pad=PAD,
        )
        for piece in map(self.piece, range(self.vocab_size)):
            if SPACE_MARK in piece.lstrip(SPACE_MARK):
                raise ValueError(f"piece {piece!r} goes on after a space; train the tokenizer here")

    def token_id(self, piece: str) -> int:
        found = self._processor.piece_to_id(piece)
        if found == self._processor.unk_id() and piece != UNK:
            size = self._processor.get_piece_size()
            raise KeyError(f"piece {piece!r} is not in this vocabulary of {size}")
        return found

    def encode_batch(self, texts: Sequence[str]) -> list["np.ndarray"]:
        import numpy as np

        words = [_WORD.findall(text) for text in texts]
        with self._lock:
            if len(self._known) > KNOWN_WORDS:
                self._known.clear()
            new = [*set(itertools.chain.from_iterable(words)).difference(self._known)]
            packed = (array(ID_TYPE, ids).tobytes() for ids in self._encode(new))
            self._known.update(zip(new, packed, strict=True))
            rows = [b"".join(map(self._known.__getitem__, row)) for row in words]
            for word in new:
                if len(word) > WORD_CHARACTERS:
                    del self._known[word]
        return [np.frombuffer(row, ID_TYPE) for row in rows]

    def decode(self, ids: "Sequence[int] | np.ndarray") -> str:
        return self._processor.decode([int(i) for i in ids])

    def piece(self, token: int) -> str:
        """A piece as it stands in the vocabulary: U+2581 for a space, `<0x0A>` for a byte."""
        return self._processor.id_to_piece(int(token))

    def _encode(self, words: list[str]) -> list[list[int]]:
        try:
            rows = self._processor.encode(words, num_threads=1)
        except (RuntimeError, TypeError, UnicodeEncodeError) as error:
            raise ValueError(
                f"a text cannot be encoded as UTF-8 ({error}); pass it through clean_text"
            ) from error
        for index, word in enumerate(words):
            if SPACE_MARK in word:
                rows[index] = self._encode_with_space_marks(word)
        return rows

    def _encode_with_space_marks(self, text: str) -> list[int]:
        first, *others = text.split(SPACE_MARK)
        ids = list(self._processor.encode(first))
        for part in others:
            ids += [*self._space_mark, *self._processor.encode(part)]
        return ids


def load_tokenizer(folder: str) -> TextTokenizer:
    """The tokenizer of an artifact folder; raises StageError when its model is missing."""
    path = os.path.join(folder, MODEL_FILE)
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return SentencePieceTokenizer(file.read())
    if os.path.isfile(os.path.join(folder, IMPORTED_FILE)):
        from marin_dagster.data.tokenizer_import import ImportedTokenizer

        return ImportedTokenizer(folder)
    raise StageError("bad_input", f"{path} is missing; rebuild the tokenizer")


@dataclass(frozen=True, kw_only=True)
class TrainTokenizer(Tokenizer):
    """Trains a byte-fallback BPE on a seeded sample of documents, and gates it by round trips.

    `sample_bytes` bounds the text that is read into memory, which peaks at about seven times it.
    """

    stage: ClassVar[str] = "tokenizers"

    documents: tuple[Documents, ...]
    vocab_size: int  # pieces, with 8 control pieces and 256 bytes
    sample_bytes: int = 100_000_000  # bytes of UTF-8
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        smallest = len(CONTROL_PIECES) + NUM_BYTES + 1
        if not smallest <= self.vocab_size <= 1 << 20:
            raise ValueError(
                f"vocab_size={self.vocab_size} of {self.address} is outside {smallest} to "
                f"{1 << 20} (8 control pieces and 256 bytes come first); choose one inside"
            )
        if self.sample_bytes < 1:
            raise ValueError(
                f"sample_bytes={self.sample_bytes} of {self.address} is below 1; "
                "give the number of bytes to train on"
            )
        if not self.documents:
            raise ValueError(f"documents=() of {self.address} is empty; name at least one input")

    def build(self, ctx: Context) -> Summary:
        from marin_dagster.data.tokenizer_export import write_tokenizer_files
        from marin_dagster.data.tokenizer_gate import check_round_trip, example_splits

        folders = [ctx.path(recipe) for recipe in self.documents]
        sample = _Sample(folders, self.sample_bytes, self.seed)
        if not sample.total_documents:
            raise StageError(
                "bad_input",
                f"{self.address} kept 0 of 0 documents: its inputs are empty; rebuild them",
            )
        ctx.log(
            f"training on at most {min(self.sample_bytes, sample.total_bytes):,} of "
            f"{sample.total_bytes:,} bytes; memory peaks at about seven times that"
        )
        model = train_model(_lines(sample, ctx), self.vocab_size)
        tokenizer = SentencePieceTokenizer(model)
        checked = check_round_trip(tokenizer)
        with open(os.path.join(ctx.out, MODEL_FILE), "wb") as file:
            file.write(model)
        write_tokenizer_files(ctx.out, tokenizer)
        tallies = _compress(sample.shown(), tokenizer)
        size, tokens = (sum(tallies[f"{what} by source"].values()) for what in ("bytes", "tokens"))
        return Summary(
            numbers={
                "vocab_size": tokenizer.vocab_size,
                "sampled_bytes": sample.kept_bytes,
                "bytes_per_token": round(size / max(tokens, 1), 4),
                "round_trip_strings": checked,
            },
            counts=Counts(
                unit="documents",
                read=sample.total_documents,
                kept=sample.kept_documents,
                dropped={"over_sample_bytes": sample.total_documents - sample.kept_documents},
            ),
            tables={"Example splits": example_splits(tokenizer), **compression_tables(tallies)},
        )


def train_model(lines: Iterator[str], vocab_size: int) -> bytes:
    """A serialized sentencepiece BPE; raises StageError when the lines hold too few pieces."""
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines,
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            split_by_whitespace=True,  # what `TextTokenizer` relies on
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=3,
            unk_piece=UNK,
            bos_piece=BOS,
            eos_piece=EOS,
            pad_piece=PAD,
            control_symbols=list(CHAT_PIECES),
            max_sentence_length=4 * LINE_CHARACTERS,
            input_sentence_size=0,
            num_threads=2,  # stored in the model, so it may not depend on the machine
            minloglevel=2,
        )
    except RuntimeError as error:
        if "ocabulary size" not in str(error) and "vocab_size" not in str(error):
            raise
        limit = re.search(r"<= (\d+)", str(error))
        advice = f"at most {limit.group(1)}" if limit else "a smaller number"
        raise StageError(
            "bad_input",
            f"vocab_size={vocab_size} is more than this text can fill; "
            f"set vocab_size to {advice}, or train on more text",
        ) from error
    return model.getvalue()


class _Sample:
    """Documents within a byte budget, chosen by a hash of their ids, in input order.

    While they are read, those of the lowest hashes are kept, to be shown.
    """

    def __init__(self, folders: Sequence[str], budget: int, seed: int):
        self._folders, self._budget, self._seed = folders, budget, seed
        self.total_documents = self.total_bytes = 0
        self.kept_documents = self.kept_bytes = 0
        self._lowest: list[tuple[float, int, Document]] = []  # a heap, the highest hash first
        for document in self._all():
            self.total_documents += 1
            self.total_bytes += len(document["text"].encode())

    def __iter__(self) -> Iterator[Document]:
        import xxhash

        share = self._budget / max(self.total_bytes, 1)
        for document in self._all():
            size = len(document["text"].encode())
            draw = xxhash.xxh3_64_intdigest(document["id"].encode(), seed=self._seed) / 2**64
            if (share >= 1 or draw < share) and self.kept_bytes + size <= self._budget:
                self.kept_documents += 1
                self.kept_bytes += size
                self._show(draw, document)
                yield document

    def shown(self) -> list[Document]:
        """Documents of the sample, drawn without regard to order, with the beginning of texts."""
        return [document for _, _, document in sorted(self._lowest)]

    def _show(self, draw: float, document: Document) -> None:
        cut: Document = {**document, "text": document["text"][:SHOWN_CHARACTERS]}
        item = (-draw, self.kept_documents, cut)
        if len(self._lowest) < SHOWN_DOCUMENTS:
            heapq.heappush(self._lowest, item)
        else:
            heapq.heappushpop(self._lowest, item)

    def _all(self) -> Iterator[Document]:
        for folder in self._folders:
            yield from read_documents(folder)


def _lines(sample: "_Sample", ctx: Context) -> Iterator[str]:
    """Lines for the trainer: none empty, none longer than the trainer reads, no NUL."""
    for count, document in enumerate(sample, start=1):
        ctx.progress(count, sample.total_documents)
        for line in document["text"].replace("\0", "").split("\n"):
            for start in range(0, len(line), LINE_CHARACTERS):
                yield line[start : start + LINE_CHARACTERS]


def _compress(documents: Iterable[Document], tokenizer: TextTokenizer) -> dict[str, Counter[str]]:
    """Bytes and tokens of documents, by source and by language."""
    tallies: dict[str, Counter[str]] = defaultdict(Counter)

    def tally(name: str, value: str, amount: int) -> None:
        tallies[name][value] += amount

    for document in documents:
        size, ids = len(document["text"].encode()), tokenizer.encode(document["text"])
        tally_compression(tally, document, size, len(ids))
    return tallies


def table_row(text: str, tokenizer: TextTokenizer) -> dict[str, Any]:
    """One row of the table of example splits."""
    ids = tokenizer.encode(text)
    return {"text": text, "tokens": len(ids), "pieces": " | ".join(map(tokenizer.piece, ids))}
