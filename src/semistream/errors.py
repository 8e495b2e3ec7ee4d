"""One error base. Every message says what is wrong, with which value, and what to do."""

from __future__ import annotations

from collections.abc import Mapping


class SemiStreamError(Exception):
    """Base of every error this package raises on purpose."""


class SpecError(SemiStreamError, ValueError):
    """The question itself is wrong: a column, a type, a name, an option."""


class KeyTypeError(SpecError):
    """Key columns cannot be compared."""


class BudgetError(SemiStreamError, ValueError):
    """The memory budget is too small. `least` is the smallest number of bytes that works."""

    def __init__(self, message: str, least: int) -> None:
        super().__init__(message)
        self.least = least

    def __reduce__(self) -> tuple[type[BudgetError], tuple[str, int]]:
        return (type(self), (str(self), self.least))


class OverrunError(BudgetError):
    """A row was wider than anything the plan could know of. The join cannot go on."""


class StateError(SemiStreamError, RuntimeError):
    """A call came at the wrong time, such as `push` before the last output was read."""


class MasterError(SemiStreamError):
    """The master cannot do what was asked, or cannot be read."""


class StoreError(MasterError):
    """A store is missing, exists already, is of another format version, or cannot be written."""


class ConflictError(StoreError):
    """Another writer published a version first. Open the store again and retry."""


class DamagedError(StoreError):
    """Bytes on disk are not the bytes that were written. The message names the file."""


class DuplicateKeyError(MasterError):
    """Keys that were to be unique are not. `key` is one of them, by column; `count` is how many
    keys have more than one row, as far as was looked."""

    def __init__(
        self, message: str, key: Mapping[str, object] | None = None, count: int = 0
    ) -> None:
        super().__init__(message)
        self.key, self.count = dict(key or {}), count

    def __reduce__(self) -> tuple[type[DuplicateKeyError], tuple[str, dict[str, object], int]]:
        return (type(self), (str(self), self.key, self.count))


class DatabaseError(MasterError):
    """A database refused, or gave no answer within the deadline. Never means "no rows"."""


class ShedError(SemiStreamError):
    """Rows cannot be shed or brought back now. They stay where they were; call again later."""


class SpillError(SemiStreamError):
    """A temporary file cannot be written or read back. Nothing is lost: make room, and go on."""


class InstallError(SemiStreamError):
    """The executors' Python lacks the package or something it needs, or has another version."""


class MachineError(SemiStreamError):
    """A file of a machine's costs is missing, damaged, of another kind, or cannot be written."""
