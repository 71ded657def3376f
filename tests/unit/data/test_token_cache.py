"""A token cache reads back what was written, and refuses to be read when anything is amiss."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

from marin_dagster.data.token_cache import (
    CacheHead,
    PartWriter,
    TokenCacheReader,
    check_read_back,
    id_type,
    join_parts,
)
from marin_dagster.recipe import StageError

DOCUMENTS = ([1, 10, 11, 2], [1, 2], [1, *range(20, 60), 2])


def write_cache(
    folder: Path,
    documents=DOCUMENTS,
    *,
    vocab_size=100,
    packing="concatenated",
    weights=None,
    digest="t",
    part_documents=1_000,
) -> TokenCacheReader:
    head = CacheHead(
        vocab_size=vocab_size,
        bos_id=1,
        eos_id=2,
        pad_id=3,
        tokenizer=digest,
        packing=packing,
        has_weights=weights is not None,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        parts = []
        for first in range(0, max(1, len(documents)), part_documents):
            parts.append(f"{work}/{first}")
            with PartWriter(parts[-1], head) as part:
                for number, ids in list(enumerate(documents))[first : first + part_documents]:
                    row = None if weights is None else weights[number]
                    size = 4 * len(ids)
                    part.write(
                        ids, document=f"d{number}", source="toy", text_bytes=size, weights=row
                    )
        return join_parts(str(folder), head, parts)


def test_documents_read_back_as_written(tmp_path):
    reader = write_cache(tmp_path)
    assert [reader.document(i).tolist() for i in range(3)] == list(DOCUMENTS)
    assert (reader.num_documents, reader.num_tokens) == (3, 48)
    assert reader.text_bytes == 4 * 48
    assert reader.document_weights(0) is None


@pytest.mark.parametrize(("vocab_size", "width"), [(65_536, 2), (65_537, 4)])
def test_ids_are_as_wide_as_the_vocabulary_needs(tmp_path, vocab_size, width):
    assert id_type(vocab_size).itemsize == width
    reader = write_cache(tmp_path, [[1, vocab_size - 1, 2]], vocab_size=vocab_size)
    assert reader.document(0).tolist() == [1, vocab_size - 1, 2]


def test_weights_are_kept_per_token(tmp_path):
    weights = [[0.0] * (len(ids) - 1) + [1.0] for ids in DOCUMENTS]
    reader = write_cache(tmp_path, weights=weights, packing="whole")
    assert reader.document_weights(2).tolist() == weights[2]


@pytest.mark.parametrize("weights", [None, [[0.5] * len(ids) for ids in DOCUMENTS]])
def test_equal_documents_give_equal_bytes_in_whatever_parts(tmp_path, weights):
    for name, size in (("a", 1), ("b", 2)):
        write_cache(tmp_path / name, weights=weights, part_documents=size)
    for file in sorted((tmp_path / "a").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_an_unfinished_cache_is_named(tmp_path):
    with pytest.raises(StageError, match=r"cache\.json is missing: no finished token cache"):
        TokenCacheReader(str(tmp_path))


@pytest.mark.parametrize("key", ["num_tokens", "eos_id", "text_bytes", "packing", "tokenizer"])
def test_a_missing_key_has_no_default(tmp_path, key):
    write_cache(tmp_path)
    meta = json.loads((tmp_path / "cache.json").read_text())
    meta[f"renamed_{key}"] = meta.pop(key)
    (tmp_path / "cache.json").write_text(json.dumps(meta))
    with pytest.raises(StageError, match=rf"lacks {key}, which no default"):
        TokenCacheReader(str(tmp_path))


def test_another_format_version_is_refused(tmp_path):
    write_cache(tmp_path)
    meta = json.loads((tmp_path / "cache.json").read_text()) | {"format_version": 99}
    (tmp_path / "cache.json").write_text(json.dumps(meta))
    with pytest.raises(StageError, match=r"format_version=99, this code reads 2"):
        TokenCacheReader(str(tmp_path))


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.bin"])
def test_a_cut_or_missing_file_is_named(tmp_path, name):
    write_cache(tmp_path)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[:-2])
    with pytest.raises(StageError, match=f"{name} has {len(data) - 2} bytes where"):
        TokenCacheReader(str(tmp_path))
    (tmp_path / name).unlink()
    with pytest.raises(StageError, match=f"{name} is missing"):
        TokenCacheReader(str(tmp_path))


def test_an_empty_cache_is_refused(tmp_path):
    with pytest.raises(StageError, match="holds 0 documents and 0 tokens"):
        write_cache(tmp_path, [])


def test_the_read_back_finds_a_changed_token(tmp_path):
    import xxhash

    reader = write_cache(tmp_path)
    digests = [xxhash.xxh3_64_intdigest(reader.document(i).tobytes()) for i in range(3)]
    check_read_back(reader, digests)
    tokens = np.fromfile(tmp_path / "tokens.bin", "<u2")
    tokens[5] += 1
    tokens.tofile(tmp_path / "tokens.bin")
    with pytest.raises(StageError, match=r"document 1 of .* reads back differently"):
        check_read_back(TokenCacheReader(str(tmp_path)), digests)
    with pytest.raises(StageError, match="reads 3 of 2 written"):
        check_read_back(reader, digests[:2])
