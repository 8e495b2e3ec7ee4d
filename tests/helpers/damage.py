"""Damaged bytes given to whoever reads them, in child processes, which may die of it.

    found = outcomes(raw, use)  # Counter({"DamagedError": 2890, "same": 3})

Every byte is changed, in one bit and in all of them, and every length is cut. The names of what can
come of it, from good to bad:

    DamagedError      our own error, by its class
    same              what `use` gives for the whole bytes
    OTHER             something else: a wrong answer
    UNTYPED OSError   an error that is not ours
    KILLED SIGSEGV    the end of the process; SIGALRM: it took longer than SECONDS
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from semistream import SemiStreamError

SECONDS = 20  # that one use may take
MEMORY = 4 << 30  # bytes that it may ask for: a damaged length must not fill the machine
BEGUN = "begun"
Damage = tuple[str, bytes]


def every_byte(raw: bytes, step: int = 1) -> Iterator[Damage]:
    """Each `step`-th byte with a bit and with all bits flipped, each `step`-th length; and a byte
    too many."""
    for at in range(0, len(raw), step):
        for bits in (1 << (at // step) % 8, 0xFF):
            changed = bytes([raw[at] ^ bits])
            yield f"byte {at} ^ {bits:#x}", raw[:at] + changed + raw[at + 1 :]
        yield f"cut at {at}", raw[:at]
    yield "a byte too many", raw + b"\0"


def outcomes(
    raw: bytes, use: Callable[[bytes], object], damages: Sequence[Damage] | None = None
) -> Counter[str]:
    """What comes of `use` with every one of some damaged bytes (None: `every_byte` of them). The
    answers of `use` are compared with ==. The first of each outcome is printed, for whoever looks
    for the reason."""
    todo = list(every_byte(raw)) if damages is None else list(damages)
    found: Counter[str] = Counter()
    at = 0
    while at < len(todo):
        done, end = _in_child(raw, use, todo[at:])
        if end is not None and at + len(done) < len(todo):
            done.append(end)  # of the one that it was at
        for (name, _), outcome in zip(todo[at:], done, strict=False):
            if outcome not in found:
                print(f"{outcome}: {name}")
            found[outcome] += 1
        at += len(done)
    return found


def _in_child(
    raw: bytes, use: Callable[[bytes], object], todo: Sequence[Damage]
) -> tuple[list[str], str | None]:
    """The outcomes until all is done or the child dies, and what it died of."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
        child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            _use_all(raw, use, todo, writing)
            os._exit(0)
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(70)
    os.close(writing)
    with open(reading, "rb") as pipe:
        begun, *lines = pipe.read().decode().splitlines() or [""]
    status = os.waitpid(child, 0)[1]
    assert begun == BEGUN, f"the bytes as they are cannot be used: {begun}"
    if os.WIFSIGNALED(status):
        return lines, f"KILLED {signal.Signals(os.WTERMSIG(status)).name}"
    return lines, None if os.WEXITSTATUS(status) == 0 else f"ENDED {os.WEXITSTATUS(status)}"


def _use_all(
    raw: bytes, use: Callable[[bytes], object], todo: Sequence[Damage], writing: int
) -> None:
    faulthandler.disable()  # crashes are expected
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stderr__.fileno())
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(SECONDS)
    whole = use(raw)
    os.write(writing, f"{BEGUN}\n".encode())
    for _, damaged in todo:
        signal.alarm(SECONDS)
        os.write(writing, f"{_outcome(damaged, use, whole)}\n".encode())


def _outcome(damaged: bytes, use: Callable[[bytes], object], whole: object) -> str:
    try:
        return "same" if use(damaged) == whole else "OTHER"
    except SemiStreamError as error:
        return type(error).__name__
    except BaseException as error:
        return f"UNTYPED {type(error).__name__}"
