"""Where a ledger's files lie, what they are called, and which of them count. Pure: no files are touched.

    <ledger>/day=2026-11-16/20261116T034240.123456Z-5f0c9a1b2d3e4f60-4711-12.parquet

The day is that of the rows, in UTC. The name has the time of writing, a random id of the writer, its process and a
number, so that any number of writers share a ledger without knowing of each other. `.compacted.parquet` holds the
rows of several files; the text file beside it, `.compacted.parquet.replaces`, names them, one per line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

DAY_US = 86_400_000_000
#: No writer takes that long for one file: an older temporary file was left behind.
OLD_TEMP_US = 3_600 * 1_000_000
#: Beyond the year 9999 there are no names for days.
END_OF_TIME_US = 253_402_300_800 * 1_000_000

#: Ends the name of the file beside a compacted one that lists the files it replaces.
CLAIM_SUFFIX = ".replaces"
#: The file of a ledger that says which days were removed on purpose.
EXPIRED_MARKER = "expired.json"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"(\d{8}T\d{6}\.\d{6})Z-([0-9a-f]{16})-(\d{1,19})-(\d{1,19})(\.compacted)?\.parquet", re.ASCII)
_TEMP = re.compile(r"\.(.+)\.tmp")
_FOLDER = re.compile(r"day=(\d{4}-\d{2}-\d{2})", re.ASCII)
_TIME = "%Y%m%dT%H%M%S.%f"


@dataclass(frozen=True, slots=True)
class FileName:
    """The name of a ledger's file."""

    written_us: int
    writer: str
    pid: int
    number: int
    is_compacted: bool = False

    def __str__(self) -> str:
        # Not strftime: it does not fill the years before 1000 with zeros everywhere.
        at = (_EPOCH + timedelta(microseconds=self.written_us)).isoformat(timespec="microseconds")
        time = at.removesuffix("+00:00").replace("-", "").replace(":", "")
        compacted = ".compacted" if self.is_compacted else ""
        return f"{time}Z-{self.writer}-{self.pid}-{self.number}{compacted}.parquet"

    @classmethod
    def parse(cls, name: str) -> FileName | None:
        """None if it is not the name of a ledger's file."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        try:
            at = datetime.strptime(found[1], _TIME).replace(tzinfo=UTC)
        except ValueError:
            return None
        return cls((at - _EPOCH) // timedelta(microseconds=1), found[2], int(found[3]), int(found[4]), bool(found[5]))


def is_compacted(name: str) -> bool:
    """Whether it is the name of a compacted file."""
    parsed = FileName.parse(name)
    return parsed is not None and parsed.is_compacted


def temp_name(name: str) -> str:
    """What a file is called until it is whole. Readers of all kinds leave out what begins with a dot."""
    return f".{name}.tmp"


def parse_temp(name: str) -> FileName | None:
    """The file that a temporary one would have become, or whose sidecar; None if it is not ours."""
    found = _TEMP.fullmatch(name)
    return None if found is None else FileName.parse(found[1]) or parse_sidecar(found[1])


def sidecar_name(compacted: str) -> str:
    """The file that lists what a compacted one replaces. Not hidden: Spark's text reader must find it."""
    return f"{compacted}{CLAIM_SUFFIX}"


def parse_sidecar(name: str) -> FileName | None:
    """The compacted file that a sidecar belongs to; None if it is not the name of a sidecar."""
    file = FileName.parse(name.removesuffix(CLAIM_SUFFIX)) if name.endswith(CLAIM_SUFFIX) else None
    return file if file is not None and file.is_compacted else None


def encode_claims(names: Iterable[str]) -> bytes:
    """The content of a sidecar: one name per line."""
    return "".join(f"{name}\n" for name in sorted(names)).encode()


def decode_claims(content: bytes) -> list[str]:
    """The names in a sidecar. As in Spark's text reader, bytes that are not UTF-8 make a name that no file has."""
    return [line for line in content.decode(errors="replace").split("\n") if line]


def is_hidden(name: str) -> bool:
    """Whether readers leave it out by convention, such as `_SUCCESS`."""
    return name.startswith((".", "_"))


def folder_of(ts: int) -> str:
    """The folder for a row of that time, in microseconds since the epoch."""
    return f"day={(_EPOCH + timedelta(days=ts // DAY_US)).date().isoformat()}"


def day_of(folder: str) -> str | None:
    """The day of a folder, as 2026-11-16; None if it is not a folder of rows."""
    found = _FOLDER.fullmatch(folder)
    if found is None:
        return None
    try:
        datetime.strptime(found[1], "%Y-%m-%d")
    except ValueError:
        return None
    return found[1]


def end_of_day_us(day: str) -> int:
    """When a day is over, in microseconds since the epoch."""
    return (datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1) + DAY_US


@dataclass(frozen=True, slots=True)
class Selection:
    """Which files of a folder count."""

    #: Together these hold every row once.
    live: list[str] = field(default_factory=list)
    #: Files whose rows are in another one, by the name of that one.
    replaced: dict[str, str] = field(default_factory=dict)
    #: Compacted files that came too late: another one had some of their rows already.
    void: list[str] = field(default_factory=list)


def select(names: Iterable[str], claims: Mapping[str, Iterable[str]]) -> Selection:
    """Which files of a folder to read; `claims` has the names that each listed compacted file replaces.

    A compacted file without claims replaces nothing. One with claims is valid from the moment it is visible, so there
    is no moment in which rows are seen twice or not at all. If two claim the same file the earlier by name counts,
    unless the later replaces the earlier one as well: so no one has to hold a lock to compact.
    """
    listed = sorted(names)
    owner: dict[str, str] = {}
    void: list[str] = []
    for name in sorted(claims):
        claimed = set(claims[name])
        earlier = {owner[one] for one in claimed if one in owner}
        if earlier <= claimed:
            owner.update(dict.fromkeys(claimed, name))
        else:
            void.append(name)
    gone = set(void)
    return Selection(
        live=[name for name in listed if name not in owner and name not in gone],
        replaced={name: owner[name] for name in listed if name in owner},
        void=[name for name in listed if name in gone],
    )
