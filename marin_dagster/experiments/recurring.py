"""Turns a list under the prefix into the versions that a recurring experiment gained over time.

Entries are numbered files under `.experiments/<name>/`, each created only if its number is free:
two renewals at once never lose a version. `.experiments/<name>.json` repeats them, so that reading
takes that file and a look for the next number. Nothing is ever listed.
"""

import datetime
import json
import time
import zoneinfo
from collections.abc import Collection
from dataclasses import asdict, dataclass

from marin_dagster.recipe import NAME, is_calendar_version
from marin_dagster.storage import Storage

FOLDER = ".experiments"


@dataclass(frozen=True, kw_only=True)
class Recurrence:
    """When an experiment gets a new version, once its schedule is turned on.

    An experiment module that defines `RECURS = Recurrence(...)` recurs.
    """

    cron: str  # minute hour day month weekday, as in "0 2 * * *"
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if len(self.cron.split()) != 5:
            raise ValueError(
                f"cron={self.cron!r} has not five fields; write minute, hour, day, month and "
                "weekday, as in '0 2 * * *'"
            )
        try:
            zoneinfo.ZoneInfo(self.timezone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(
                f"timezone={self.timezone!r} is not known here; write one as 'Europe/Paris'"
            ) from error

    def today(self) -> str:
        """The calendar version of this day."""
        return datetime.datetime.now(zoneinfo.ZoneInfo(self.timezone)).strftime("%Y.%m.%d")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One version that was added, when (seconds since 1970) and on what occasion."""

    version: str
    occasion: str | None = None
    made: float


def entries(storage: Storage, name: str) -> list[Entry]:
    """The versions that were added to an experiment, oldest first.

    Raises ValueError that names the file when one cannot be read.
    """
    found = _read_index(storage, name)
    while (entry := _read_entry(storage, name, len(found) + 1)) is not None:
        found.append(entry)
    return found


def add_version(
    storage: Storage,
    name: str,
    *,
    today: str,
    taken: Collection[str],
    version: str | None = None,
    occasion: str | None = None,
) -> str:
    """Adds `version`, or the first free one of today; returns it.

    A second call with the same occasion adds nothing and returns what the first added. `taken` are
    versions that the experiment has besides. Raises ValueError when `version` is not free.
    """
    if not NAME.fullmatch(name):
        raise ValueError(
            f"the experiment {name!r} cannot gain versions under the prefix; name its entry point "
            "with lower-case letters, digits, '.', '_' and '-'"
        )
    while True:
        known = entries(storage, name)
        for entry in known:
            if occasion is not None and entry.occasion == occasion:
                return entry.version
        used = {*taken, *(entry.version for entry in known)}
        chosen = version or next_version(today, used)
        if not is_calendar_version(chosen) or chosen in used:
            raise ValueError(
                f"version={chosen!r} of experiment {name!r} exists already or is no calendar "
                "version; write YYYY.MM.DD or YYYY.MM.DD.N, or leave it out"
            )
        known.append(Entry(version=chosen, occasion=occasion, made=time.time()))
        content = json.dumps(asdict(known[-1])).encode()
        if storage.create(_entry_path(name, len(known)), content) is not None:
            rows = {"versions": [asdict(entry) for entry in known]}
            storage.write(_index_path(name), json.dumps(rows, indent=1).encode())
            return chosen


def next_version(today: str, used: Collection[str]) -> str:
    """`2026.12.01`, or `2026.12.01.1` and so on when that is taken."""
    number, version = 0, today
    while version in used:
        number += 1
        version = f"{today}.{number}"
    return version


def _read_index(storage: Storage, name: str) -> list[Entry]:
    path = _index_path(name)
    content = storage.read(path)
    if content is None:
        return []
    try:
        return [_entry(row) for row in json.loads(content)["versions"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{storage.url(path)} cannot be read ({type(error).__name__}: {error}); delete it, "
            f"it is made again from the files in {storage.url(f'{FOLDER}/{name}')}"
        ) from error


def _read_entry(storage: Storage, name: str, number: int) -> Entry | None:
    path = _entry_path(name, number)
    content = storage.read(path)
    if content is None:
        return None
    try:
        return _entry(json.loads(content))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{storage.url(path)} cannot be read ({type(error).__name__}: {error}); write "
            '{"version": "YYYY.MM.DD", "made": 0} into it, with the version that it held'
        ) from error


def _entry(row: dict) -> Entry:
    entry = Entry(**row)
    if not is_calendar_version(entry.version):
        raise ValueError(f"version={entry.version!r} is not a calendar version")
    return entry


def _index_path(name: str) -> str:
    return f"{FOLDER}/{name}.json"


def _entry_path(name: str, number: int) -> str:
    return f"{FOLDER}/{name}/{number:05d}.json"
