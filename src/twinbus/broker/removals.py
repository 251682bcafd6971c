"""Messages that were removed one at a time: noted in a small file of their own until the database knows it, too.

A client that completes each message by itself makes SQLite write whole pages for every one of them. A note is twelve
bytes, and as durable as a commit as soon as it is written; the database is told of many at once.

A note is the key of a message and a checksum, which begins with a number that the database keeps. That number changes
when the database has been told and whenever it is opened, so a note that is torn, is of another time or came with
another database is none.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from struct import Struct
from typing import Self

CAPACITY = 2048  # notes: how many messages the database may be behind

_key = Struct(">Q")
_NOTE_BYTES = _key.size + 4
_FILE_BYTES = CAPACITY * _NOTE_BYTES
_sync = getattr(os, "fdatasync", os.fsync)


class Removals:
    """The file. What it does raises `OSError` if the disk does not do what it should."""

    def __init__(self, path: Path, syncs: bool) -> None:
        self._syncs = syncs
        self._start = self._position = 0
        #: Whether there was no such file, or only the beginning of one.
        self.is_new = False
        #: Whether there is room for a note, and the disk takes it.
        self.takes_notes = False
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        self._file = open(descriptor, "r+b", buffering=0)  # noqa: SIM115 - closed by `__exit__`
        try:
            self._allot(path)
        except BaseException:
            self._file.close()
            raise

    def _allot(self, path: Path) -> None:
        """Take the room at once: a note then changes some bytes and nothing else, and needs no room on the disk."""
        size = self._file.seek(0, os.SEEK_END)
        if size >= _FILE_BYTES:
            return
        self.is_new = True
        while size < _FILE_BYTES:
            size += self._file.write(bytes(_FILE_BYTES - size))
        os.fsync(self._file.fileno())
        if os.name == "posix":  # the new file's name must last as long as what is in it
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def read(self, start: int) -> list[int]:
        """The keys that were noted while the database's number was `start`."""
        self._file.seek(0)
        data = self._file.readall()
        notes = (data[at : at + _NOTE_BYTES] for at in range(0, _FILE_BYTES, _NOTE_BYTES))
        return [_key.unpack_from(note)[0] for note in notes if note == _note(note[: _key.size], start)]

    def begin(self, start: int) -> None:
        """The database knows all that was noted, and `start` is its number from now on."""
        self.takes_notes = False
        self._start, self._position = start, 0
        self._file.seek(0)
        self.takes_notes = True

    @property
    def is_used(self) -> bool:
        """Whether something was noted, or may have been, since `begin`."""
        return self._position > 0 or not self.takes_notes

    def add(self, key: int) -> None:
        """Note that a message is removed. After an error no more notes are taken until `begin`."""
        note = _note(_key.pack(key), self._start)
        try:
            if self._file.write(note) != _NOTE_BYTES:
                raise OSError("a note was written in part")
            if self._syncs:
                _sync(self._file.fileno())
        except OSError:
            self._take_back()
            raise
        self._position += _NOTE_BYTES
        self.takes_notes = self._position < _FILE_BYTES

    def _take_back(self) -> None:
        """What could not be synced may be on the disk, and must not be good when it is read."""
        self.takes_notes = False
        with contextlib.suppress(OSError):
            self._file.seek(self._position)
            self._file.write(bytes(_NOTE_BYTES))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _note(key: bytes, start: int) -> bytes:
    return key + zlib.crc32(key, start).to_bytes(4)
