"""Many builders, one address: 208 starts per backend, 13 addresses that 16 builders start at once.

Every start must end with the artifact, every artifact must be computed once. The builders are 16
processes, the same for all three backends that processes can share; in memory they are threads.
"""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from marin_dagster.recipe import Summary
from marin_dagster.store import BuildContext, Store
from tests.toys import Words

BUILDERS, ROUNDS = 16, 13
SECONDS = 120


def words(number: int) -> Words:
    return Words(name=f"toy-{number}", version="2026.01.01", words=("one", "two"))


def build(store: Store, number: int, log: str) -> tuple[bool, int, str]:
    """One start: (reused, attempt, digest) as this builder sees it."""

    def work(context: BuildContext) -> Summary:
        with open(log, "a") as file:  # one line for each time that the artifact is computed
            file.write(f"{number}\n")
        return words(number).build(context)

    outcome = store.build(words(number), work=work)
    return outcome.reused, outcome.record.attempt, outcome.record.digest


def builder(number: int, barrier, orders, results) -> None:
    """A process that starts what it is told to, all at the same moment, until told to end."""
    for prefix, environment, log, cache in iter(orders.get, None):
        os.environ.update(environment)
        store = Store(prefix, cache=f"{cache}-{number}", poll_seconds=0.3)
        for start in range(ROUNDS):
            barrier.wait(SECONDS)
            results.put((start, *build(store, start, log)))


@pytest.fixture(scope="module")
def builders() -> Iterator[tuple[list, object]]:
    """Sixteen processes, forked from a fresh interpreter that only imported the store."""
    methods = multiprocessing.get_context("forkserver")
    methods.set_forkserver_preload(["marin_dagster.store", "tests.toys"])
    barrier, results = methods.Barrier(BUILDERS), methods.Queue()
    orders = [methods.Queue() for _ in range(BUILDERS)]
    processes = [
        methods.Process(target=builder, args=(number, barrier, queue, results), daemon=True)
        for number, queue in enumerate(orders)
    ]
    for process in processes:
        process.start()
    yield orders, results
    for queue in orders:
        queue.put(None)
    for process in processes:
        process.join(10)
        process.kill()


@pytest.mark.parametrize(
    "shared_place", ["file", "gs", pytest.param("s3", marks=pytest.mark.slow)], indirect=True
)
def test_of_sixteen_processes_that_start_one_address_one_builds_it(
    shared_place, builders, tmp_path
):
    orders, results = builders
    log = tmp_path / "computed"
    order = (shared_place.prefix, shared_place.environment(), str(log), str(tmp_path / "cache"))
    for queue in orders:
        queue.put(order)
    found = [results.get(timeout=SECONDS) for _ in range(BUILDERS * ROUNDS)]
    check(found, log, Store(shared_place.prefix, cache=str(tmp_path / "reader")))


def test_of_sixteen_threads_that_start_one_address_in_memory_one_builds_it(tmp_path):
    prefix, log = f"memory://{tmp_path.name}", tmp_path / "computed"
    found = []
    with ThreadPoolExecutor(BUILDERS) as pool:
        stores = [
            Store(prefix, cache=str(tmp_path / f"cache-{number}"), poll_seconds=0.01)
            for number in range(BUILDERS)
        ]
        for start in range(ROUNDS):
            outcomes = pool.map(lambda store, n=start: (n, *build(store, n, str(log))), stores)
            found += outcomes
    check(found, log, Store(prefix, cache=str(tmp_path / "reader")))


def check(found: list, log: Path, reader: Store) -> None:
    """Asserts that every start had the right outcome and that nothing was computed twice."""
    assert len(found) == BUILDERS * ROUNDS
    for number in range(ROUNDS):
        mine = [row[1:] for row in found if row[0] == number]
        assert sorted(reused for reused, *_ in mine) == [False] + [True] * (BUILDERS - 1)
        record = reader.record(words(number))
        assert {(attempt, digest) for _, attempt, digest in mine} == {
            (record.attempt, record.digest)
        }
        assert reader.damage(words(number), record, checksums=True) == []
    assert sorted(log.read_text().split(), key=int) == [str(n) for n in range(ROUNDS)]
