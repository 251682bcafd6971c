"""Notes single message removals in a small file, and applies them to the database in batches.

For a client that completes messages one by one, SQLite would write whole pages per message. A note is twelve bytes and,
once written, as durable as a commit.

A note is a message's key and a checksum seeded with a number that the database stores. That number changes with each
batch and whenever the database is opened, so notes that are torn, old or from another database are ignored.
"""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from struct import Struct
from typing import Self

CAPACITY = 2048  # notes: how many removals the database may be behind

_key = Struct(">Q")
_NOTE_BYTES = _key.size + 4
_FILE_BYTES = CAPACITY * _NOTE_BYTES
_sync = getattr(os, "fdatasync", os.fsync)


class Removals:
    """The file of notes. Its methods raise `OSError` if the disk fails."""

    def __init__(self, path: Path, syncs: bool) -> None:
        self._syncs = syncs
        self._start = self._position = 0
        #: Whether the file did not exist or was incomplete.
        self.is_new = False
        #: Whether there is room for a note and no write has failed.
        self.takes_notes = False
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o600)
        self._file = open(descriptor, "r+b", buffering=0)  # noqa: SIM115 - closed by `__exit__`
        try:
            self._allocate(path)
        except BaseException:
            self._file.close()
            raise

    def _allocate(self, path: Path) -> None:
        """Write the file to its full size: a note then overwrites some bytes and needs no disk space."""
        size = self._file.seek(0, os.SEEK_END)
        if size >= _FILE_BYTES:
            return
        self.is_new = True
        while size < _FILE_BYTES:
            size += self._file.write(bytes(_FILE_BYTES - size))
        os.fsync(self._file.fileno())
        if os.name == "posix":  # make the new file's directory entry durable too
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def read(self, start: int) -> list[int]:
        """The keys in notes whose checksum is seeded with `start`."""
        self._file.seek(0)
        data = self._file.readall()
        notes = (data[at : at + _NOTE_BYTES] for at in range(0, _FILE_BYTES, _NOTE_BYTES))
        return [_key.unpack_from(note)[0] for note in notes if note == _note(note[: _key.size], start)]

    def begin(self, start: int) -> None:
        """Start a new batch of notes, seeded with `start`; the database has applied all earlier ones."""
        self.takes_notes = False
        self._start, self._position = start, 0
        self._file.seek(0)
        self.takes_notes = True

    @property
    def is_used(self) -> bool:
        """Whether a removal was, or may have been, noted since `begin`."""
        return self._position > 0 or not self.takes_notes

    def add(self, key: int) -> None:
        """Note that a message is removed. After an error, no notes can be added until `begin`."""
        note = _note(_key.pack(key), self._start)
        try:
            if self._file.write(note) != _NOTE_BYTES:
                raise OSError("a note was only partly written")
            if self._syncs:
                _sync(self._file.fileno())
        except OSError:
            self._erase_last()
            raise
        self._position += _NOTE_BYTES
        self.takes_notes = self._position < _FILE_BYTES

    def _erase_last(self) -> None:
        """Erase a note whose sync failed: it may be on disk, and must not be valid when it is read."""
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
