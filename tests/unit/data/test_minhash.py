import numpy as np
import pytest

from marin_dagster.data.minhash import MinHash


def pair(rng: np.random.Generator, similarity: float, size: int = 300) -> list[np.ndarray]:
    """Two sets of hashes with this Jaccard similarity."""
    shared = round(size * similarity)
    grams = rng.integers(1 << 63, size=size, dtype=np.uint64)
    middle = shared + (size - shared) // 2
    return [grams[:middle], np.concatenate([grams[:shared], grams[middle:]])]


@pytest.mark.parametrize("similarity", [0.5, 0.8, 0.95])
def test_rows_agree_as_often_as_documents_are_similar(similarity):
    rng = np.random.default_rng(0)
    minhash = MinHash(32, 8, seed=1)
    agreed = []
    for _ in range(200):
        one, other = (minhash.rows(grams) for grams in pair(rng, similarity))
        agreed.append((one == other).mean())
    error = 4 * (similarity * (1 - similarity) / (256 * 200)) ** 0.5
    assert abs(np.mean(agreed) - similarity) < error


def test_pairs_share_a_band_as_often_as_the_formula_says():
    rng = np.random.default_rng(2)
    minhash = MinHash(32, 8, seed=1)
    found = 0
    for _ in range(1000):
        one, other = minhash.band_keys([minhash.rows(grams) for grams in pair(rng, 0.7)]).T
        found += bool((one == other).any())
    expected = 1 - (1 - 0.7**8) ** 32
    assert abs(found / 1000 - expected) < 4 * (expected * (1 - expected) / 1000) ** 0.5


def test_order_repeats_and_length_do_not_matter():
    grams = np.random.default_rng(3).integers(1 << 63, size=9000, dtype=np.uint64)
    minhash = MinHash(4, 3, seed=1)
    again = np.concatenate([grams[::-1], grams[:100]])
    assert np.array_equal(minhash.rows(grams), minhash.rows(again))
    assert minhash.band_keys([minhash.rows(grams[:0])]).shape == (4, 1)
    assert minhash.band_keys([]).shape == (4, 0)
