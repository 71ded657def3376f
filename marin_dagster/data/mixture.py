"""Turns weighted token caches into batches by step number.

The order is that of blocks: rows of the longest context. A step takes the next blocks of an endless
sequence, whatever the number of hosts, and cuts them where a phase trains on shorter rows.

Shapes: B rows of a batch, S tokens of a row, N blocks.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64

from marin_dagster.data.interleave import Interleave
from marin_dagster.data.permutation import permutation_key, permute
from marin_dagster.data.token_cache import TokenCacheReader
from marin_dagster.recipe import StageError

PADDING = -1  # segment id where a row holds no token
STEPS_PER_REPORT = 100  # weights and shares are logged this often, and where a stage begins


class Row(NamedTuple):
    """One row; `targets[t]` is the token after `tokens[t]`, weighted 0 in another document."""

    tokens: Int32[np.ndarray, " S"]
    targets: Int32[np.ndarray, " S"]
    loss_weights: Float32[np.ndarray, " S"]
    segment_ids: Int32[np.ndarray, " S"]  # document within the row, -1 for padding


class Batch(NamedTuple):
    """Rows of one step, and the source that each came from."""

    tokens: Int32[np.ndarray, "B S"]
    targets: Int32[np.ndarray, "B S"]
    loss_weights: Float32[np.ndarray, "B S"]
    segment_ids: Int32[np.ndarray, "B S"]
    sources: Int32[np.ndarray, " B"]


class Rows:
    """Cuts a cache into rows: documents end to end, conversations whole, as many as fit.

    The last row, and every row of conversations, is padded. Raises ValueError when a conversation
    is longer than a row.
    """

    def __init__(self, reader: TokenCacheReader, seq_len: int):
        self.reader, self.seq_len = reader, seq_len
        self._offsets = np.asarray(reader.offsets)
        if reader.packing == "whole":
            self._bounds = _whole_documents(reader, seq_len)
            self.num_rows = len(self._bounds) - 1
        else:
            self._bounds = None
            self.num_rows = max(1, math.ceil((reader.num_tokens - 1) / seq_len))

    def row(self, index: int) -> Row:
        """Row `index` of the cache, in the order of its documents."""
        reader = self.reader
        if self._bounds is None:
            start = index * self.seq_len
            stop = min(start + self.seq_len, reader.num_tokens)
        else:
            start, stop = int(self._bounds[index]), int(self._bounds[index + 1])
        size, ahead = stop - start, min(stop + 1, reader.num_tokens) - start - 1
        first, last = np.searchsorted(self._offsets, (start, stop), side="right")
        begins = self._offsets[first:last] - start  # documents that begin in or right after the row
        tokens = np.full(self.seq_len, reader.pad_id, np.int32)
        targets = np.full(self.seq_len, reader.pad_id, np.int32)
        weights = np.zeros(self.seq_len, np.float32)
        segments = np.full(self.seq_len, PADDING, np.int32)
        tokens[:size] = reader.tokens[start:stop]
        targets[:ahead] = reader.tokens[start + 1 : start + 1 + ahead]
        segments[:size] = 0
        segments[begins[begins < size]] = 1
        np.cumsum(segments[:size], out=segments[:size])
        given = 1.0 if reader.weights is None else reader.weights[start + 1 : start + 1 + ahead]
        weights[:ahead] = given
        weights[begins - 1] = 0
        return Row(tokens, targets, weights, segments)


class _Stage(NamedTuple):
    """A stretch of the sequence with one set of weights."""

    step: int  # at which it begins
    block: int
    interleave: Interleave
    sources: Int64[np.ndarray, " M"]  # of the mixture, by the interleave's index
    earlier: Int64[np.ndarray, " K"]  # blocks of each source of the mixture before it


class Mixture:
    """Batches from weighted sources, by step.

    Each source is read in its own order, which depends on the seed, its name and the epoch only:
    another source, weight, batch size, context or number of hosts leaves it unchanged.

    `weights` hold from the first step, each of `stages` from its own on. `seq_len` and `batch_size`
    are of blocks; `contexts` gives the rows' length from a step on, where it is shorter.

    Raises ValueError that names the source for a missing or extra weight, a weight that is not
    positive or that gets no block of its stage, and for caches of different tokenizers.
    """

    def __init__(
        self,
        readers: Mapping[str, TokenCacheReader],
        weights: Mapping[str, float],
        seq_len: int,
        batch_size: int,
        seed: int,
        num_steps: int,
        *,
        stages: Sequence[tuple[int, Mapping[str, float]]] = (),
        contexts: Sequence[tuple[int, int]] = (),
    ):
        every = [(0, weights), *stages]
        _check(readers, [given for _, given in every])
        self.names = tuple(readers)
        self.seq_len, self.batch_size, self.seed = seq_len, batch_size, seed
        self.num_steps, self._readers = num_steps, readers
        self._rows = [Rows(reader, seq_len) for reader in readers.values()]
        self._contexts = [(0, seq_len), *contexts]
        _check_contexts(self._contexts, readers)
        self._stages = self._cut_in_stages(every)
        self._key = functools.lru_cache(maxsize=4096)(
            lambda source, epoch: permutation_key(seed, self.names[source], epoch)
        )

    def batch(self, step: int, host: int = 0, num_hosts: int = 1) -> Batch:
        """The rows of a step, or the part of them that one of several hosts trains on.

        The parts of all hosts, one after another, are the batch of a single one. Raises ValueError
        when they cannot be of one size.
        """
        size = self.batch_size * self.seq_len // self.context_at(step)
        if size % num_hosts:
            raise ValueError(
                f"batch_size={size} at step {step} is not divisible by num_hosts={num_hosts}; "
                "change one of them"
            )
        part = size // num_hosts
        return self.rows(step, host * part, (host + 1) * part)

    def rows(self, step: int, start: int, stop: int) -> Batch:
        """Rows `start` to below `stop` of a step; no other block is read."""
        cut = self.seq_len // self.context_at(step)
        first, last = start // cut, -(-stop // cut)
        sources, numbers = self.blocks(step, first, last)
        places = zip(sources.tolist(), numbers.tolist(), strict=True)
        read = [self._rows[source].row(number) for source, number in places]
        inside = slice(start - first * cut, stop - first * cut)

        def cut_up(field: str) -> np.ndarray:
            blocks = np.stack([getattr(row, field) for row in read])
            return blocks.reshape(len(read) * cut, -1)[inside]

        batch = Batch(
            tokens=cut_up("tokens"),
            targets=cut_up("targets"),
            loss_weights=cut_up("loss_weights"),
            segment_ids=cut_up("segment_ids"),
            sources=np.repeat(sources, cut)[inside].astype(np.int32),
        )
        return batch if cut == 1 else _from_zero(batch)

    def blocks(
        self, step: int, start: int, stop: int
    ) -> tuple[Int64[np.ndarray, " N"], Int64[np.ndarray, " N"]]:
        """The source of each of these blocks of a step, and which of the source's rows it is."""
        stage = self._stage_at(step)
        first = step * self.batch_size - stage.block
        chosen, nth = stage.interleave.at(np.arange(first + start, first + stop, dtype=np.int64))
        sources = stage.sources[chosen]
        lengths = np.array([rows.num_rows for rows in self._rows], np.int64)[sources]
        epochs, places = np.divmod(stage.earlier[sources] + nth, lengths)
        pairs = zip(sources.tolist(), epochs.tolist(), strict=True)
        keys = np.array([self._key(*pair) for pair in pairs], np.uint64)
        return sources, permute(places, lengths, keys)

    def context_at(self, step: int) -> int:
        """Tokens per row at a step."""
        return next(length for start, length in reversed(self._contexts) if start <= step)

    def cursor(self, step: int) -> dict[str, int]:
        """Tokens read of each source before a step, padding of its blocks included."""
        return {name: self.seq_len * read for name, read in self._read_before(step).items()}

    def epochs(self, step: int) -> dict[str, float]:
        """How often each source has been read before a step."""
        read = self._read_before(step)
        pairs = zip(self.names, self._rows, strict=True)
        return {name: read[name] / rows.num_rows for name, rows in pairs}

    def metrics(self, step: int) -> dict[str, float]:
        """What a log says of the step: stage and context; now and then weights and shares.

        `mixture/share/<source>` is the share of all tokens up to and with the step.
        """
        stage = self._stage_at(step)
        found: dict[str, float] = {
            "mixture/stage": sum(other.step < stage.step for other in self._stages),
            "mixture/context": self.context_at(step),
        }
        done = step + 1
        if step == stage.step or done % STEPS_PER_REPORT == 0 or done == self.num_steps:
            total = done * self.batch_size
            for name, read in self._read_before(done).items():
                found[f"mixture/weight/{name}"] = stage.interleave.shares.get(name, 0.0)
                found[f"mixture/share/{name}"] = read / total
        return found

    def requested_shares(self) -> dict[str, float]:
        """The share of the run's tokens that the weights ask of each source."""
        asked = dict.fromkeys(self.names, 0.0)
        ends = [*(stage.step for stage in self._stages[1:]), self.num_steps]
        for stage, end in zip(self._stages, ends, strict=True):
            for name, share in stage.interleave.shares.items():
                asked[name] += share * (end - stage.step) / self.num_steps
        return asked

    def table(self) -> list[dict[str, Any]]:
        """What a run asks of each source and what it reads of it, in shares of its tokens."""
        read, epochs = self._read_before(self.num_steps), self.epochs(self.num_steps)
        asked, total = self.requested_shares(), self.num_steps * self.batch_size
        return [
            {
                "source": name,
                "requested share": round(asked[name], 6),
                "realised share": round(read[name] / total, 6),
                "tokens": read[name] * self.seq_len,
                "epochs": round(epochs[name], 3),
            }
            for name in self.names
        ]

    def position(self, step: int) -> dict[str, Any]:
        """Where the data stand before a step and what they are, as JSON, for `check_position`."""
        return {
            "step": step,
            "seq_len": self.seq_len,
            "seed": self.seed,
            "cursor": self.cursor(step),
            "sources": {
                name: {
                    "digest": reader.meta["digest"],
                    "tokens": reader.num_tokens,
                    "packing": reader.packing,
                }
                for name, reader in self._readers.items()
            },
        }

    def _cut_in_stages(self, every: Sequence[tuple[int, Mapping[str, float]]]) -> list[_Stage]:
        found: list[_Stage] = []
        earlier = dict.fromkeys(self.names, 0)
        ends = [*(step for step, _ in every[1:]), self.num_steps]
        for (step, weights), end in zip(every, ends, strict=True):
            interleave = Interleave(weights)
            sources = np.array([self.names.index(name) for name in weights], np.int64)
            before = np.array(list(earlier.values()), np.int64)
            found.append(_Stage(step, step * self.batch_size, interleave, sources, before))
            size = (end - step) * self.batch_size
            for name, count in interleave.counts(size).items():
                earlier[name] += count
                if count == 0:
                    raise ValueError(
                        f"weight={interleave.shares[name]:g} of source {name!r} gives it none of "
                        f"the {size} blocks from step {step} to {end}; raise the weight, train "
                        "longer, or leave the source out"
                    )
        return found

    def _stage_at(self, step: int) -> _Stage:
        return next(stage for stage in reversed(self._stages) if stage.step <= step)

    def _read_before(self, step: int) -> dict[str, int]:
        """Blocks of each source before a step."""
        stage = self._stage_at(step)
        read = dict(zip(self.names, stage.earlier.tolist(), strict=True))
        counts = stage.interleave.counts(step * self.batch_size - stage.block)
        return {name: count + counts.get(name, 0) for name, count in read.items()}


def check_position(stored: Mapping[str, Any], mixture: Mixture) -> None:
    """Raises StageError that lists how the data differ from those that a run has read so far.

    `stored` is what `Mixture.position` gave. New sources are fine as long as none of their tokens
    should have been read.
    """
    now = mixture.position(stored["step"])
    faults = _differences(stored, now, ("seq_len", "seed"))
    for name in sorted(stored["cursor"].keys() | now["cursor"].keys()):
        before, after = stored["cursor"].get(name, 0), now["cursor"].get(name, 0)
        if before != after:
            faults.append(f"{name}: {before} tokens were read, {after} would have been")
    for name, was in stored["sources"].items():
        if name in now["sources"]:
            faults += [f"{name}: {row}" for row in _differences(was, now["sources"][name], was)]
    if faults:
        raise StageError(
            "bad_input",
            f"the data are not those of the first {stored['step']} steps: {'; '.join(faults)}; "
            "restore them, or start a new run, under another name or version",
        )


def _differences(was: Mapping[str, Any], now: Mapping[str, Any], keys: Iterable[str]) -> list[str]:
    return [f"{key} {was[key]} → {now[key]}" for key in keys if was[key] != now[key]]


def _whole_documents(reader: TokenCacheReader, seq_len: int) -> np.ndarray:
    """Token offsets of rows that begin and end with a document."""
    offsets = np.asarray(reader.offsets)
    longest = int(np.diff(offsets).max())
    if longest > seq_len:
        raise ValueError(
            f"{reader.folder} holds a conversation of {longest} tokens, more than "
            f"seq_len={seq_len}; tokenize with seq_len={seq_len} or train with longer rows"
        )
    bounds = [0]
    while bounds[-1] < offsets[-1]:
        last = np.searchsorted(offsets, bounds[-1] + seq_len, side="right") - 1
        bounds.append(int(offsets[last]))
    return np.array(bounds)


def _from_zero(batch: Batch) -> Batch:
    """Numbers the documents of every row from 0, after rows were cut."""
    segments = batch.segment_ids
    numbered = np.where(segments == PADDING, PADDING, segments - segments[:, :1])
    return batch._replace(segment_ids=numbered.astype(np.int32))


def _check(readers: Mapping[str, TokenCacheReader], every: Sequence[Mapping[str, float]]) -> None:
    if not readers:
        raise ValueError("a mixture of no sources has no rows; give at least one token cache")
    weighted = {name for weights in every for name in weights}
    for name in sorted(readers.keys() ^ weighted):
        lacking = "weight" if name in readers else "token cache"
        raise ValueError(f"source {name!r} has no {lacking}; give every source one of each")
    for weights in every:
        for name, weight in weights.items():
            if not (math.isfinite(weight) and weight > 0):
                raise ValueError(
                    f"weight={weight} of source {name!r} is not positive, so it would never be "
                    "sampled; give it a positive weight or leave it out"
                )
    tokenizers = {reader.meta["tokenizer"] for reader in readers.values()}
    if len(tokenizers) > 1:
        listed = ", ".join(
            f"{name}: {reader.meta['tokenizer']}" for name, reader in readers.items()
        )
        raise ValueError(
            f"sources come from different tokenizers ({listed}); tokenize them with the same one"
        )


def _check_contexts(
    contexts: Sequence[tuple[int, int]], readers: Mapping[str, TokenCacheReader]
) -> None:
    longest = contexts[0][1]
    for step, length in contexts:
        if longest % length:
            raise ValueError(
                f"rows of {length} tokens from step {step} do not divide the blocks of "
                f"seq_len={longest}; give a divisor"
            )
    if all(length == longest for _, length in contexts[1:]):
        return
    for name, reader in readers.items():
        if reader.packing == "whole":
            raise ValueError(
                f"source {name!r} holds conversations, which may not be cut into shorter rows; "
                "train it at one context"
            )
