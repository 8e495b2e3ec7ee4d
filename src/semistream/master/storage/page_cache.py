"""How many bytes of files this process can expect to stay in memory.

In a container the page cache counts as the container's own memory: what its limit leaves beside the
memory that programs hold is all that files can have, however much the machine has free. A store
that is mapped and does not fit is read again and again, each fault with the kernel's read-ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

SHARE = 0.7  # of what there is, for one store: others want some of it, too


def stays_in_memory(size: int, root: Path = Path("/")) -> bool:
    """Whether `size` bytes of files would stay in the page cache. Where nothing can be known, yes:
    so it was always assumed."""
    room = room_for_files(root)
    return room is None or size <= SHARE * room


def room_for_files(root: Path = Path("/")) -> int | None:
    """Bytes that this process may have in the page cache: what the machine has available, and what
    each group of processes that it belongs to may use beside the memory of its programs."""
    found = [_available(root), *_groups(root)]
    return min((room for room in found if room is not None), default=None)


def _available(root: Path) -> int | None:
    """What Linux says could be had without swapping."""
    with suppress(OSError, ValueError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    return None


def _groups(root: Path) -> Iterator[int | None]:
    """For each control group, version 1 or 2, that limits this process or its parents."""
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds == "":
                top, limit, program = root / "sys/fs/cgroup", "memory.max", "anon"
            elif "memory" in kinds.split(","):
                top = root / "sys/fs/cgroup/memory"
                limit, program = "memory.limit_in_bytes", "total_rss"
            else:
                continue
            parts = path.strip("/").split("/") if path.strip("/") else []
            # Inside a container the path may be the one that the host sees: then the top is ours.
            for depth in range(len(parts), -1, -1):
                yield _left(top.joinpath(*parts[:depth]), limit, program)


def _left(group: Path, limit: str, program: str) -> int | None:
    """What a group's limit leaves to the page cache; None: it has no limit, or cannot be read."""
    with suppress(OSError, ValueError, KeyError):
        most = int((group / limit).read_text())  # "max" is no number: no limit
        stat = dict(line.split()[:2] for line in (group / "memory.stat").read_text().splitlines())
        return max(0, most - int(stat[program]))
    return None
