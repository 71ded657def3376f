"""Turns the state of a training into resume points while it goes on, and the newest back into it.

Orbax writes the arrays, agrees on that between processes, and puts them back onto any mesh. What it
does not do stands beside it: checksums and their reading back, a manifest written last, several
roots, facts that are no arrays, and points that say whose they are (`points`). Its
CheckpointManager would choose and delete by the names of folders alone. Its asynchronous save
prepares its files while the caller waits; where one process holds all arrays, the caller waits for
their copies only.
"""

import concurrent.futures
import os
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from marin_dagster.recipe import StageError
from marin_dagster.training import points
from marin_dagster.training.model_files import fill, named_arrays, refuse_misfit
from marin_dagster.training.points import PERMANENT, TEMPORARY, Place

KEPT = 2  # temporary points; the older one serves when the newest does not verify
COMMIT_SECONDS = 3600  # the longest that processes wait for one another in one save
WRITE_ERRORS = (OSError, ValueError, RuntimeError)  # of Orbax and TensorStore, a full disk too


class Origin(NamedTuple):
    """A permanent point of another run, from which this one goes on."""

    address: str  # of that run
    folder: str  # with its points
    identity: str  # the fingerprint of its recipe
    step: int


class Restored:
    """A state from disk, with the facts that were saved beside it."""

    def __init__(self, place: Place, state: Any, facts: Mapping[str, Any]):
        self.step, self.attempt = place.step, place.attempt
        self.state, self.facts = state, facts


class Saver:
    """Writes resume points from background threads; a failed write surfaces at the next call.

    Temporary points go to the first of `roots`, permanent ones to the last. `identity` is the
    fingerprint of the recipe: points of another one are neither read nor removed. Use as a context
    manager: leaving it waits for the last write and raises what it raised. May be used from
    several threads.
    """

    def __init__(self, roots: Sequence[str], identity: str, log: Callable[[str], None]):
        for root in roots:
            if "://" in root:
                raise ValueError(
                    f"checkpoint root {root!r} is an address, not a folder; mount the bucket and "
                    "give its folder in MARIN_CHECKPOINT_ROOTS"
                )
        self.roots = tuple(os.path.abspath(root) for root in roots)
        self.identity = identity
        self.attempt = 1  # the number that points of this process will have
        self.lineage: list[list[int]] = []  # attempts, and the steps that they went on from
        self.last_durable: int | None = None  # step, of this attempt's lineage
        self._log = log
        self._lock = threading.RLock()
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "marin-checkpoint")
        self._pending: concurrent.futures.Future | None = None
        self._orbax = ocp.AsyncCheckpointer(
            ocp.PyTreeCheckpointHandler(use_compression=False),  # weights do not shrink
            timeout_secs=COMMIT_SECONDS,
        )

    def __enter__(self) -> "Saver":
        if _is_first():
            for root in self.roots:
                os.makedirs(root, exist_ok=True)
                points.sweep(root)
        return self

    def __exit__(self, kind: type | None, *_: Any) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self._pool.shutdown(wait=True)

    def save(
        self, step: int, state: Any, facts: Mapping[str, Any], *, permanent: bool = False
    ) -> None:
        """Copies the state after `step` steps and writes it; waits for the write before.

        When this returns, the arrays may be donated. `facts` are JSON values.
        """
        with self._lock:
            self.wait()
            place = Place.of(self.roots[-1 if permanent else 0], step, self.attempt)
            kind = PERMANENT if permanent else TEMPORARY
            arrays, copies = named_arrays(state), None
            if jax.process_count() == 1:
                copies = {name: np.array(leaf) for name, leaf in arrays.items()}
            else:
                try:
                    self._start(place, arrays)
                except WRITE_ERRORS as error:
                    raise self._failed(error) from error
            shapes = {name: [str(leaf.dtype), list(leaf.shape)] for name, leaf in arrays.items()}
            about = {"kind": kind, "lineage": list(self.lineage), "arrays": shapes}
            self._pending = self._pool.submit(self._commit, place, copies, dict(facts), about)

    def check(self) -> None:
        """Raises what the last write raised, if it has ended."""
        with self._lock:
            if self._pending is not None and self._pending.done():
                self.wait()

    def wait(self) -> None:
        """Waits for the last write and raises what it raised."""
        with self._lock:
            pending, self._pending = self._pending, None
            if pending is None:
                return
            try:
                pending.result()
            except WRITE_ERRORS as error:
                raise self._failed(error) from error

    def restore(
        self, like: Any, before: int | None = None, origin: Origin | None = None
    ) -> Restored | None:
        """Fills a state of arrays from the newest point that verifies; None when there is none.

        Every array comes back with the sharding that it has in `like`, whatever mesh it was saved
        from. With `before`, only points of lower steps count; with `origin`, that one point does.

        Raises StageError("bad_input") that lists the names, shapes and types that do not fit, and
        for an origin that is not there.
        """
        self.wait()
        place = self._agreed_newest(before, origin)
        if origin is not None and (place is None or place.step != origin.step):
            raise StageError(
                "bad_input",
                f"{origin.folder} holds no resume point of step {origin.step} of {origin.address} "
                "that verifies; build that run again, with --force",
            )
        if place is None:
            return None
        manifest = points.read_manifest(place.folder)
        assert manifest is not None
        saved = {
            name: jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))
            for name, (dtype, shape) in manifest["arrays"].items()
        }
        refuse_misfit(like, saved, place.folder)
        arrays = _read_arrays(place.state, named_arrays(like))
        self.last_durable = place.step
        line = [] if origin else manifest["lineage"]
        self.lineage = [pair for pair in line if pair[0] <= place.attempt]
        return Restored(place, fill(like, arrays, place.folder), points.read_facts(place))

    def branch(self, attempt: int, step: int) -> None:
        """From now on points are those of an attempt that goes on from this step."""
        self.attempt = attempt
        self.lineage = [*self.lineage, [attempt, step]]

    def _agreed_newest(self, before: int | None, origin: Origin | None) -> Place | None:
        """The first process looks and verifies; the others believe it."""
        found, roots, identity = None, self.roots, self.identity
        if origin is not None:
            roots, identity, before = (origin.folder,), origin.identity, origin.step + 1
        if _is_first():
            found = points.newest(roots, identity, self._log, before)
            highest = max((place.attempt for place in points.places(self.roots)), default=0)
            self.attempt = max(self.attempt, 1 + highest)
        if jax.process_count() == 1:
            return found
        root = roots.index(os.path.dirname(found.folder)) if found else -1
        told = [root, found.step if found else 0, found.attempt if found else 0, self.attempt]
        root, step, attempt, self.attempt = multihost_utils.broadcast_one_to_all(
            np.array(told, np.int32)
        ).tolist()
        return None if root < 0 else Place.of(roots[root], step, attempt)

    def _start(self, place: Place, arrays: Mapping[str, Any]) -> None:
        """Begins to write arrays; all processes do so, each for its part."""
        if _is_first():
            shutil.rmtree(place.draft, ignore_errors=True)
            os.makedirs(place.draft)
        self._orbax.save(os.path.join(place.draft, points.STATE), args=ocp.args.PyTreeSave(arrays))

    def _commit(
        self,
        place: Place,
        copies: Mapping[str, np.ndarray] | None,
        facts: dict[str, Any],
        about: dict[str, Any],
    ) -> None:
        if copies is not None:
            self._start(place, copies)
        self._orbax.wait_until_finished()
        if _is_first():
            points.publish(place, self.identity, facts, about)
        self.last_durable = place.step
        if _is_first():
            points.prune(self.roots[0], self.identity, KEPT)

    def _failed(self, error: Exception) -> StageError:
        return StageError(
            "error",
            f"a checkpoint could not be written: {error}; the last durable step is "
            f"{self.last_durable}; free the disk, or mend the storage, and build again",
        )


def _read_arrays(folder: str, like: Mapping[str, jax.Array]) -> dict[str, Any]:
    """Reads arrays onto the devices of those in `like`; what was on no certain device stays so."""
    placed = {name: leaf.committed for name, leaf in like.items()}
    abstract = {
        name: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=leaf.sharding if placed[name] else None
        )
        for name, leaf in like.items()
    }
    how = {
        name: ocp.ArrayRestoreArgs(sharding=leaf.sharding, global_shape=leaf.shape)
        if placed[name]
        else ocp.RestoreArgs(restore_type=np.ndarray)
        for name, leaf in like.items()
    }
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        return reader.restore(folder, args=ocp.args.PyTreeRestore(item=abstract, restore_args=how))


def _is_first() -> bool:
    return jax.process_index() == 0
