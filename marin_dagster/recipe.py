"""Turns a plain value (a recipe) into an identity: its address, its inputs, its fingerprint."""

import dataclasses
import datetime
import enum
import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
CALENDAR = re.compile(r"([0-9]{4})\.([0-9]{2})\.([0-9]{2})(\.[1-9][0-9]*)?")
DEV = "dev"
REASONS = (
    "oom",
    "killed",
    "preempted",
    "timeout",
    "hang",
    "diverged",
    "bad_input",
    "user_cancel",
    "error",
)


class StageError(Exception):
    """A build that ended without an artifact, with a reason that a machine can read.

    `evidence` holds what the reason rests on: `signal`, `exit_code`, a limit, and the like.
    """

    def __init__(self, reason: str, message: str, evidence: Mapping[str, Any] | None = None):
        if reason not in REASONS:
            raise ValueError(f"reason={reason!r} is not one of {', '.join(REASONS)}")
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.evidence = dict(evidence or {})

    def __reduce__(self):
        return type(self), (self.reason, self.message, self.evidence)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What a stage read and what became of it: read = kept + dropped + errors."""

    unit: str
    read: int
    kept: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("dropped", "errors"):  # plain, whatever mapping counted them
            object.__setattr__(self, name, dict(getattr(self, name)))
        every = {"read": self.read, "kept": self.kept, **self.dropped, **self.errors}
        for name, number in every.items():
            if number < 0:
                raise ValueError(f"{name}={number} {self.unit} is negative; count what happened")

    @property
    def balance(self) -> int:
        """Items that are unaccounted for; 0 in a correct stage."""
        return self.read - self.kept - sum(self.dropped.values()) - sum(self.errors.values())


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a finished build says of itself: numbers to read on, counts, and things to look at.

    `plots` are SVG texts by title, `notes` are Markdown by title, `tables` are rows by title.
    """

    numbers: Mapping[str, int | float | str | bool]
    counts: Counts | None = None
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    plots: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Devices:
    """How a model is laid over accelerators. It changes memory and time, and no number.

    An axis that `mesh` does not name has size one; `data` takes the devices that are left.
    """

    mesh: str = ""  # "data=4,expert=2": sizes of replica, data, expert, context, tensor
    exchange: str = "all_to_all"  # how tokens reach experts elsewhere; or "ring": all visit all
    micro_batches: int = 1  # parts in which a batch is read
    remat: str = "none"  # or "block": layers are computed again on the way back
    scan_layers: bool = False  # compile equal layers once, for a copy of their weights

    def __post_init__(self) -> None:
        choices = {
            "exchange": ("all_to_all", "ring"),
            "remat": ("none", "block"),
        }
        for name, values in choices.items():
            if getattr(self, name) not in values:
                raise ValueError(
                    f"{name}={getattr(self, name)!r} is not one of {', '.join(values)}"
                )
        if self.micro_batches < 1:
            raise ValueError(
                f"micro_batches={self.micro_batches} is below 1; use 1 to read a batch at once"
            )


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What the environment gives a build and what never changes its identity."""

    workers: int = 2  # processes of a data stage
    hub_token: str | None = field(default=None, repr=False)
    wandb_mode: str = "offline"  # offline | online | disabled
    checkpoint_roots: tuple[str, ...] = ()  # folders for resume points, beside the work folder
    grace_seconds: float = 8.0  # between the notice that a process must end and its end
    devices: Devices = Devices()


@runtime_checkable
class Context(Protocol):
    """What a recipe's build gets: where to write, what to read, whom to tell."""

    @property
    def recipe(self) -> "Recipe": ...
    @property
    def out(self) -> str:
        """Local folder of this attempt; every file in it is committed, dot-files are not."""
        ...

    @property
    def work(self) -> str:
        """Local folder that survives a failed attempt of the same recipe and code."""
        ...

    @property
    def placement(self) -> Placement: ...
    def path(self, recipe: "Recipe") -> str:
        """The local folder with the verified files of an input."""
        ...

    def result(self, recipe: "Recipe") -> Mapping[str, Any]:
        """The numbers that an input's build recorded."""
        ...

    def record(self, recipe: "Recipe") -> Any:
        """The record of any recipe upstream (`marin_dagster.record.Record`)."""
        ...

    def progress(
        self, done: float, total: float | None = None, unit: str = "documents", **metrics: float
    ) -> None:
        """Reports how far the build is; raises StageError when the attempt was taken over."""
        ...

    def log(self, message: str) -> None: ...

    def publish(self, recipe: "Recipe", folder: str, summary: Summary) -> None:
        """Commits the files of a local folder as the artifact of a recipe of `self.recipe.makes`.

        Others can read it while this build goes on. The folder is removed when that is done, which
        may be after this call; publishing again in the same build, resumed or not, keeps the first.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """One artifact, described: its stage, name and version, and the fields that decide its bytes.

    Inputs are the recipe-valued fields, also inside tuples and dataclasses. Constructing a recipe
    does nothing. Subclasses are frozen keyword-only dataclasses and validate in `__post_init__`.

    Raises ValueError for a bad name or version, and for a fixed version that reads a `dev` input.
    """

    stage: ClassVar[str]
    accelerated: ClassVar[bool] = False  # runs in a worker that a launcher starts

    name: str
    version: str

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ValueError(
                f"name={self.name!r} of {type(self).__name__} is not a name; use lower-case "
                "letters, digits, '.', '_' and '-', starting with a letter or digit"
            )
        if self.version != DEV and not is_calendar_version(self.version):
            raise ValueError(
                f"version={self.version!r} of {self.stage}/{self.name} is neither 'dev' nor a "
                "calendar version; write YYYY.MM.DD or YYYY.MM.DD.N, as in 2026.11.30"
            )
        if self.version != DEV:
            for recipe in self.inputs:
                if recipe.version == DEV:
                    raise ValueError(
                        f"{self.address} is a fixed version and reads {recipe.address}, which "
                        "can change; give the input a calendar version, or make this one 'dev'"
                    )

    @property
    def key(self) -> str:
        """`name@version`."""
        return f"{self.name}@{self.version}"

    @property
    def address(self) -> str:
        """`stage/name@version`."""
        return f"{self.stage}/{self.key}"

    @property
    def made_by(self) -> "Recipe | None":
        """The recipe, a field of this one, whose build makes this artifact on its way."""
        return None

    @property
    def makes(self) -> tuple["Recipe", ...]:
        """The recipes whose artifacts this one's build publishes on its way."""
        return ()

    @cached_property
    def inputs(self) -> tuple["Recipe", ...]:
        """The recipes that this one reads, in the order of its fields, each once.

        What is made by another recipe on its way reads what that one reads.
        """
        found: dict[str, Recipe] = {}
        for item in dataclasses.fields(self):
            for recipe in _recipes_in(getattr(self, item.name)):
                for read in recipe.inputs if recipe is self.made_by else (recipe,):
                    refuse_if_different(found.setdefault(read.address, read), read)
        return tuple(found.values())

    @property
    def needs(self) -> tuple["Recipe", ...]:
        """What has to be built for this: the recipe that makes it on its way, or its inputs."""
        return self.inputs if self.made_by is None else (self.made_by,)

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """The modules that define this recipe and the values in its fields."""
        found = {type(self).__module__: None}
        if self.made_by is not None:
            found.update(dict.fromkeys(self.made_by.modules))
        for item in dataclasses.fields(self):
            found.update(dict.fromkeys(_modules_in(getattr(self, item.name))))
        return tuple(found)

    @cached_property
    def payload(self) -> dict[str, Any]:
        """The fields as JSON, without name and version; inputs appear as their addresses."""
        fields = {
            item.name: _encode(getattr(self, item.name), f"{self.address}: {item.name}")
            for item in dataclasses.fields(self)
            if item.name not in ("name", "version")
        }
        made = {} if self.made_by is None else {"made_by": self.made_by.payload}
        return {"recipe": type(self).__name__, **fields, **made}

    @cached_property
    def fingerprint(self) -> str:
        """Sixteen hex digits of SHA-256 over the canonical JSON of the payload."""
        text = json.dumps(self.payload, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @abstractmethod
    def build(self, ctx: Context) -> Summary:
        """Does the work: reads `ctx.path(input)`, writes `ctx.out`, returns a summary."""

    def cost(self, sizes: Mapping[str, int]) -> dict[str, float]:
        """What a run will take, as far as it can be told: tokens, flops, bytes.

        `sizes`: bytes of the inputs that are complete, by address.
        """
        return {"bytes": float(sum(sizes.values()))} if sizes else {}

    def memory(self) -> int:
        """Bytes of memory below which a run cannot end well; 0 when that cannot be told."""
        return 0


def is_calendar_version(version: str) -> bool:
    """Whether this is YYYY.MM.DD or YYYY.MM.DD.N, of a day that exists."""
    match = CALENDAR.fullmatch(version)
    if match is None:
        return False
    try:
        datetime.date(*(int(part) for part in match.groups()[:3]))
    except ValueError:
        return False
    return True


def walk(targets: Iterable[Recipe]) -> dict[str, Recipe]:
    """Returns every recipe that the targets need, by address, inputs before their readers.

    A recipe stands before those that it makes on its way.

    Raises ValueError when two different recipes claim one address.
    """
    found: dict[str, Recipe] = {}
    pending: list[tuple[Recipe, bool]] = [(target, False) for target in reversed(list(targets))]
    while pending:
        recipe, expanded = pending.pop()
        known = found.get(recipe.address)
        if known is not None:
            refuse_if_different(known, recipe)
        elif expanded:
            found[recipe.address] = recipe
        else:
            pending.append((recipe, True))
            pending.extend((child, False) for child in reversed(recipe.needs))
    return found


def refuse_if_different(one: Recipe, other: Recipe) -> None:
    """Raises ValueError when two recipes share an address and do not say the same."""
    if one is other or one.fingerprint == other.fingerprint:
        return
    rows = [f"{path}: {a!r} / {b!r}" for path, a, b in payload_diff(one.payload, other.payload)]
    raise ValueError(
        f"two different recipes claim {one.address} ({'; '.join(rows[:5])}); "
        "give one of them another name or version"
    )


def payload_diff(old: Any, new: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Lists (dotted path, old, new) where two payloads differ; a missing side is None."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        pairs = [(f"{path}.{key}" if path else key, old.get(key), new.get(key)) for key in keys]
    elif isinstance(old, list) and isinstance(new, list):
        size = max(len(old), len(new))
        pad_old, pad_new = old + [None] * (size - len(old)), new + [None] * (size - len(new))
        pairs = [(f"{path}[{i}]", pad_old[i], pad_new[i]) for i in range(size)]
    else:
        return [] if old == new else [(path, old, new)]
    return [row for where, a, b in pairs for row in payload_diff(a, b, where)]


def _recipes_in(value: Any) -> Iterator[Recipe]:
    if isinstance(value, Recipe):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _recipes_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield from _recipes_in(getattr(value, item.name))


def _modules_in(value: Any) -> Iterator[str]:
    if isinstance(value, (tuple, list)):
        for item in value:
            yield from _modules_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, (type, Recipe)):
        yield type(value).__module__
        for item in dataclasses.fields(value):
            yield from _modules_in(getattr(value, item.name))


def _encode(value: Any, where: str) -> Any:
    """Turns a field into JSON; `where` names it in the error."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where}={value} is not finite; use None for 'no limit'")
        return value
    if isinstance(value, Recipe):
        return {"input": value.address}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [_encode(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            item.name: _encode(getattr(value, item.name), f"{where}.{item.name}")
            for item in dataclasses.fields(value)
        }
        return {"type": type(value).__name__, **fields}
    raise TypeError(
        f"{where}={value!r} is a {type(value).__name__}, which has no stable identity; "
        "use literals, tuples, frozen dataclasses and recipes"
    )
