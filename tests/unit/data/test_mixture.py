"""Batches depend on the step alone, keep the weights, and never reach across documents."""

import numpy as np
import pytest

from marin_dagster.data.mixture import PADDING, Mixture, Rows, interleave, permutation
from tests.unit.data.test_token_cache import write_cache

SEQ_LEN = 16


def documents(first: int, count: int = 30) -> list[list[int]]:
    """Documents of 3 to 12 tokens whose ids tell which cache they come from."""
    return [[1, *range(first, first + 1 + i % 10), 2] for i in range(count)]


@pytest.fixture
def readers(tmp_path):
    return {
        name: write_cache(tmp_path / name, documents(first))
        for name, first in (("a", 10), ("b", 40), ("c", 70))
    }


def mixture(readers, weights, **changes) -> Mixture:
    fields = {"seq_len": SEQ_LEN, "batch_size": 4, "seed": 0, **changes}
    return Mixture({name: readers[name] for name in weights}, weights, **fields)


def rows_of(mix: Mixture, name: str, num_rows: int) -> list[tuple[int, ...]]:
    """The first rows that a mixture takes from one source."""
    found, step, source = [], 0, mix.names.index(name)
    while len(found) < num_rows:
        batch = mix.batch(step)
        found += [
            tuple(row.tolist())
            for row, of in zip(batch.tokens, batch.sources, strict=True)
            if of == source
        ]
        step += 1
    return found[:num_rows]


def test_every_step_is_the_same_whenever_it_is_asked_for(readers):
    weights = {"a": 0.7, "b": 0.3}
    one, other = mixture(readers, weights), mixture(readers, weights)
    ahead = [one.batch(step) for step in range(20)]
    for step in (19, 3, 7):
        for left, right in zip(ahead[step], other.batch(step), strict=True):
            np.testing.assert_array_equal(left, right)


def test_another_source_weight_or_batch_size_leaves_a_sources_order_alone(readers):
    expected = rows_of(mixture(readers, {"a": 1.0}), "a", 40)
    assert rows_of(mixture(readers, {"a": 0.5, "b": 0.5}), "a", 40) == expected
    assert rows_of(mixture(readers, {"b": 3.0, "a": 1.0, "c": 1.0}), "a", 40) == expected
    assert rows_of(mixture(readers, {"a": 1.0}, batch_size=7), "a", 40) == expected
    assert rows_of(mixture(readers, {"a": 1.0}, seed=1), "a", 40) != expected


def test_batch_size_does_not_change_the_sequence_of_rows(readers):
    weights = {"a": 0.6, "b": 0.3, "c": 0.1}
    small, large = mixture(readers, weights, batch_size=2), mixture(readers, weights, batch_size=8)
    stacked = np.concatenate([small.batch(step).tokens for step in range(12)])
    np.testing.assert_array_equal(
        stacked, np.concatenate([large.batch(step).tokens for step in range(3)])
    )


def test_an_epoch_reads_every_row_once(readers):
    rows = Rows(readers["a"], SEQ_LEN)
    taken = rows_of(mixture(readers, {"a": 1.0}), "a", 2 * rows.num_rows)
    everything = sorted(tuple(rows.row(i).tokens.tolist()) for i in range(rows.num_rows))
    assert sorted(taken[: rows.num_rows]) == everything
    assert sorted(taken[rows.num_rows :]) == everything
    assert taken[: rows.num_rows] != taken[rows.num_rows :]


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.9, 0.1), (0.6, 0.3, 0.1), (0.97, 0.02, 0.01)])
def test_every_prefix_keeps_the_weights_within_a_row_of_each(shares):
    pattern = interleave(np.array(shares), 2048)
    for length in (10, 100, 1000, 2048):
        counts = np.bincount(pattern[:length], minlength=len(shares))
        assert np.abs(counts - np.array(shares) * length).max() <= len(shares) - 1


def test_epochs_count_what_was_read(readers):
    mix = mixture(readers, {"a": 0.75, "b": 0.25})
    sources = np.concatenate([mix.batch(step).sources for step in range(700)])
    epochs = mix.epochs(700)
    for index, name in enumerate(mix.names):
        num_rows = Rows(readers[name], SEQ_LEN).num_rows
        assert epochs[name] == pytest.approx((sources == index).sum() / num_rows)


def test_targets_are_the_next_tokens_of_the_same_document(readers):
    reader = readers["a"]
    rows = Rows(reader, SEQ_LEN)
    predicted = 0.0
    for index in range(rows.num_rows):
        row = rows.row(index)
        for t in range(SEQ_LEN):
            place = index * SEQ_LEN + t
            if place >= reader.num_tokens:
                assert row.segment_ids[t] == PADDING
                assert (row.tokens[t], row.loss_weights[t]) == (reader.pad_id, 0)
                continue
            assert row.tokens[t] == reader.tokens[place]
            assert row.loss_weights[t] == float(reader.tokens[place] != reader.eos_id)
            if row.loss_weights[t]:
                assert row.targets[t] == reader.tokens[place + 1]
        predicted += row.loss_weights.sum()
    assert predicted == reader.num_tokens - reader.num_documents


def test_segments_change_exactly_where_documents_begin(readers):
    row = Rows(readers["a"], SEQ_LEN).row(1)
    changes = np.flatnonzero(np.diff(row.segment_ids)) + 1
    np.testing.assert_array_equal(changes, np.flatnonzero(row.tokens[1:] == 1) + 1)
    assert row.segment_ids[0] == 0


def test_conversations_are_packed_whole_and_weighted_by_their_target(tmp_path):
    chats = documents(10)
    weights = [[0.0] * (len(ids) - 2) + [1.0, 1.0] for ids in chats]
    reader = write_cache(tmp_path, chats, packing="whole", weights=weights)
    rows = Rows(reader, SEQ_LEN)
    found, supervised = [], 0.0
    for index in range(rows.num_rows):
        row = rows.row(index)
        for segment in range(row.segment_ids.max() + 1):
            found.append(row.tokens[row.segment_ids == segment].tolist())
        supervised += row.loss_weights.sum()
        np.testing.assert_array_equal(row.loss_weights[row.segment_ids == PADDING], 0)
        assert row.targets[row.loss_weights > 0].min() >= 2
    assert found == chats
    assert supervised == 2 * len(chats)


def test_a_conversation_longer_than_a_row_is_refused(tmp_path):
    chats = [[1, *range(10, 40), 2]]
    reader = write_cache(tmp_path, chats, packing="whole", weights=[[1.0] * 32])
    with pytest.raises(ValueError, match="a conversation of 32 tokens, more than seq_len=16"):
        Rows(reader, SEQ_LEN)


def test_a_cache_shorter_than_a_row_is_one_padded_row(tmp_path):
    rows = Rows(write_cache(tmp_path, [[1, 10, 2]]), SEQ_LEN)
    assert rows.num_rows == 1
    assert rows.row(0).loss_weights.sum() == 2


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": 1.0}, "source 'b' has no weight"),
        ({"a": 1.0, "b": 1.0, "z": 1.0}, "source 'z' has no token cache"),
        ({"a": 1.0, "b": 0.0}, r"weight=0\.0 of source 'b' is not positive"),
        ({"a": 1.0, "b": float("nan")}, "weight=nan of source 'b'"),
        ({"a": 1.0, "b": 1e-5}, "of source 'b' gives it none of 2048 rows"),
    ],
)
def test_a_source_that_would_be_left_out_is_named(readers, weights, message):
    two = {name: readers[name] for name in ("a", "b")}
    with pytest.raises(ValueError, match=message):
        Mixture(two, weights, seq_len=SEQ_LEN, batch_size=4, seed=0)


def test_a_run_too_short_for_a_source_is_refused(readers):
    with pytest.raises(ValueError, match="of source 'b' gives it none of 8 rows"):
        mixture(readers, {"a": 0.99, "b": 0.01}, num_steps=2)


def test_caches_of_different_tokenizers_are_refused(readers, tmp_path):
    other = write_cache(tmp_path / "other", documents(10), digest="u")
    with pytest.raises(ValueError, match="different tokenizers"):
        Mixture(
            {"a": readers["a"], "o": other},
            {"a": 1.0, "o": 1.0},
            seq_len=SEQ_LEN,
            batch_size=4,
            seed=0,
        )


def test_the_order_of_rows_is_pinned():
    assert permutation(0, "web", 0, 8).tolist() == permutation.__wrapped__(0, "web", 0, 8).tolist()
    assert sorted(permutation(0, "web", 1, 8).tolist()) == list(range(8))
    assert permutation(0, "web", 0, 8).tolist() != permutation(0, "web", 1, 8).tolist()
