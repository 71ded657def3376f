"""Batches depend on the step alone, keep the weights, and never reach across documents."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marin_dagster.data.mixture import PADDING, Mixture, Rows, check_position
from marin_dagster.recipe import StageError
from tests.unit.data.test_token_cache import write_cache

SEQ_LEN = 16


def documents(first: int, count: int = 30) -> list[list[int]]:
    """Documents of 3 to 12 tokens whose ids tell which cache they come from."""
    return [[1, *range(first, first + 1 + i % 10), 2] for i in range(count)]


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")
    return {
        name: write_cache(folder / name, documents(first))
        for name, first in (("a", 10), ("b", 40), ("c", 70))
    }


def mixture(readers, weights, **changes) -> Mixture:
    fields = {"seq_len": SEQ_LEN, "batch_size": 4, "seed": 0, "num_steps": 1_000, **changes}
    used = {
        name for stage in (weights, *dict(changes.get("stages", ())).values()) for name in stage
    }
    return Mixture({name: readers[name] for name in sorted(used)}, weights, **fields)


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
    rows = Rows(readers["a"], SEQ_LEN)
    ends = 0
    for index in range(rows.num_rows - 1):  # the last one is padded
        row = rows.row(index)
        changes = np.flatnonzero(np.diff(row.segment_ids)) + 1
        np.testing.assert_array_equal(changes, np.flatnonzero(row.tokens[1:] == 1) + 1)
        assert row.segment_ids[0] == 0
        ends += SEQ_LEN - 1 in changes
    assert ends  # a document that begins with the last token of a row is among them


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
        ({"a": 1.0, "b": 1e-5}, "of source 'b' gives it none of the 4000 blocks from step 0"),
    ],
)
def test_a_source_that_would_be_left_out_is_named(readers, weights, message):
    two = {name: readers[name] for name in ("a", "b")}
    with pytest.raises(ValueError, match=message):
        Mixture(two, weights, seq_len=SEQ_LEN, batch_size=4, seed=0, num_steps=1_000)


def test_a_run_too_short_for_a_source_is_refused(readers):
    with pytest.raises(ValueError, match="of source 'b' gives it none of the 8 blocks"):
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
            num_steps=10,
        )


SHARED = settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SHARES = st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 10), min_size=1)


def equal(one, other) -> bool:
    return all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


def joined(batches):
    return [np.concatenate(fields) for fields in zip(*batches, strict=True)]


@SHARED
@given(
    weights=SHARES,
    seed=st.integers(0, 99),
    batch_size=st.integers(1, 9),
    changed=st.integers(200, 250),
)
def test_new_sources_weights_and_batches_reorder_no_source(
    readers, weights, seed, batch_size, changed
):
    """Also when the weights change, and sources come or go, at some step."""
    plain = {name: mixture(readers, {name: 1.0}, seed=seed) for name in "abc"}
    later = {"a": 1.0, "b": 2.0, "c": 0.5}
    rows = {name: readers[name] for name in "abc"}
    mix = Mixture(
        rows,
        weights,
        seq_len=SEQ_LEN,
        batch_size=batch_size,
        seed=seed,
        num_steps=2_000,
        stages=[(300, later), (300 + changed, weights)],
    )
    for step in (0, 299, 300, 300 + changed, 900):
        read = {name: tokens // SEQ_LEN for name, tokens in mix.cursor(step).items()}
        batch = mix.batch(step)
        for row, source in zip(batch.tokens, batch.sources, strict=True):
            name = mix.names[source]
            nth, read[name] = read[name], read[name] + 1
            alone = plain[name].rows(nth // 4, nth % 4, nth % 4 + 1)
            np.testing.assert_array_equal(row, alone.tokens[0])
        assert {name: count * SEQ_LEN for name, count in read.items()} == mix.cursor(step + 1)


@SHARED
@given(num_hosts=st.sampled_from([1, 2, 3, 4, 6, 12]), step=st.integers(0, 500))
def test_hosts_read_their_rows_only_and_together_the_batch(readers, num_hosts, step):
    mix = mixture(readers, {"a": 2.0, "b": 1.0}, batch_size=12)
    parts = [mix.batch(step, host, num_hosts) for host in range(num_hosts)]
    assert {len(part.tokens) for part in parts} == {12 // num_hosts}
    assert equal(joined(parts), mix.batch(step))


def test_a_host_opens_no_row_of_another(readers, monkeypatch):
    mix = mixture(readers, {"a": 1.0}, batch_size=8)
    read, row = [], Rows.row
    monkeypatch.setattr(Rows, "row", lambda self, index: read.append(index) or row(self, index))
    mix.batch(3, host=1, num_hosts=4)
    assert len(read) == 2


def test_hosts_that_cannot_share_a_batch_are_told(readers):
    with pytest.raises(ValueError, match=r"batch_size=4 at step 0 is not divisible by num_hosts=3"):
        mixture(readers, {"a": 1.0}).batch(0, 0, 3)


def test_a_shorter_context_cuts_the_same_tokens_in_the_same_order(readers):
    weights = {"a": 0.6, "b": 0.4}
    long = mixture(readers, weights)
    cut = mixture(readers, weights, contexts=[(3, SEQ_LEN // 4), (6, SEQ_LEN)])
    for step in range(8):
        one, other = long.batch(step), cut.batch(step)
        assert other.tokens.shape == ((16, 4) if 3 <= step < 6 else (4, 16))
        for field in ("tokens", "targets", "loss_weights"):
            np.testing.assert_array_equal(
                getattr(one, field).ravel(), getattr(other, field).ravel()
            )
        whole = np.diff(one.segment_ids.reshape(other.tokens.shape), axis=1) != 0
        np.testing.assert_array_equal(np.diff(other.segment_ids, axis=1) != 0, whole)
        assert set(other.segment_ids[:, 0]) <= {0, PADDING}
        np.testing.assert_array_equal(
            other.sources, np.repeat(one.sources, len(other.sources) // len(one.sources))
        )
        parts = [cut.batch(step, host, 4) for host in range(4)]
        assert equal(joined(parts), other)
    assert cut.cursor(8) == long.cursor(8)


def test_a_context_that_does_not_fit_is_refused(readers, tmp_path):
    with pytest.raises(ValueError, match=r"rows of 5 tokens from step 2 do not divide"):
        mixture(readers, {"a": 1.0}, contexts=[(2, 5)])
    chats = write_cache(tmp_path, documents(10), packing="whole", weights=None)
    with pytest.raises(ValueError, match=r"source 'chats' holds conversations"):
        mixture({"chats": chats}, {"chats": 1.0}, contexts=[(2, 8)])


def test_stages_change_the_weights_where_they_begin_and_say_so(readers):
    mix = mixture(
        readers, {"a": 3.0, "b": 1.0}, batch_size=8, num_steps=60, stages=[(40, {"b": 1.0})]
    )
    assert set(mix.batch(39).sources) == {0, 1}
    assert set(mix.batch(40).sources) == {1}
    logged = [mix.metrics(step) for step in range(60)]
    assert [row["mixture/stage"] for row in logged] == [0] * 40 + [1] * 20
    assert [step for step, row in enumerate(logged) if "mixture/weight/a" in row] == [0, 40, 59]
    assert logged[0]["mixture/weight/a"] == 0.75
    assert logged[40]["mixture/weight/a"] == 0
    assert logged[59]["mixture/share/a"] == pytest.approx(0.5)
    table = {row["source"]: row for row in mix.table()}
    assert table["a"]["requested share"] == table["a"]["realised share"] == 0.5
    assert table["b"]["tokens"] == 240 * SEQ_LEN
    assert table["b"]["epochs"] == pytest.approx(mix.epochs(60)["b"], abs=1e-3)


def test_shares_logged_are_those_of_the_rows_that_were_read(readers):
    mix = mixture(readers, {"a": 0.7, "b": 0.29, "c": 0.01}, num_steps=200)
    sources = np.concatenate([mix.batch(step).sources for step in range(200)])
    for index, name in enumerate("abc"):
        assert mix.metrics(199)[f"mixture/share/{name}"] == (sources == index).mean()


def test_a_weight_too_small_for_its_run_is_refused_and_honoured_in_a_longer_one(readers):
    weights = {"a": 0.999999, "b": 1e-6}
    with pytest.raises(ValueError, match=r"weight=1e-06 of source 'b' gives it none of the 20000"):
        mixture(readers, weights, batch_size=20, num_steps=1_000)
    mix = mixture(readers, weights, batch_size=2_000, num_steps=1_000)
    assert mix.cursor(1_000)["b"] == 2 * SEQ_LEN
    with pytest.raises(
        ValueError, match=r"source 'b' gives it none of the 8 blocks from step 8 to"
    ):
        mixture(readers, {"a": 1.0}, num_steps=10, stages=[(8, {"a": 0.99, "b": 0.01})])


def test_a_position_fits_the_same_data_and_ones_with_a_later_source(readers):
    mix = mixture(readers, {"a": 1.0, "b": 1.0})
    stored = json.loads(json.dumps(mix.position(17)))
    check_position(stored, mix)
    check_position(stored, mixture(readers, {"a": 1.0, "b": 1.0}, stages=[(17, {"a": 1, "c": 1})]))


def test_changed_data_are_refused_with_what_changed(readers, tmp_path):
    stored = mixture(readers, {"a": 1.0, "b": 1.0}).position(17)
    swapped = {"a": write_cache(tmp_path, documents(11, 31)), "b": readers["b"]}
    with pytest.raises(StageError) as caught:
        check_position(stored, mixture(swapped, {"a": 1.0, "b": 1.0}))
    assert caught.value.reason == "bad_input"
    assert "a: digest" in caught.value.message
    assert (
        f"a: tokens {readers['a'].num_tokens} → {swapped['a'].num_tokens}" in caught.value.message
    )
    assert "b: " not in caught.value.message
    assert "start a new run" in caught.value.message
    for other in (
        mixture(readers, {"a": 2.0, "b": 1.0}),
        mixture(readers, {"a": 1.0, "c": 1.0}),
        mixture(readers, {"a": 1.0, "b": 1.0, "c": 1.0}),
    ):
        with pytest.raises(StageError, match=r"a: \d+ tokens were read|b: \d+ tokens were read"):
            check_position(stored, other)
    with pytest.raises(StageError, match="seed 0 → 1"):
        check_position(stored, mixture(readers, {"a": 1.0, "b": 1.0}, seed=1))
