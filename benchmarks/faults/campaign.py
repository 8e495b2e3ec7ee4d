"""A campaign of kills: Python workers, executors and drivers under a streaming query."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.faults.query import FILES
from benchmarks.faults.verdict import Verdict, verdict
from benchmarks.lib.campaign import Campaign, await_end, kill

PATIENCE = 180  # seconds
KINDS = {"worker": 0.5, "executor": 0.35, "driver": 0.15}  # how often each is killed


@dataclass(frozen=True)
class Kill:
    kind: str
    batch: int | None  # that was under way
    joining: bool  # the victim had the store open


class Faults(Campaign):
    module, sales = "benchmarks.faults", 500

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder, seed)
        self.kills: list[Kill] = []
        self._orphans: list[psutil.Process] = []  # of drivers that are dead

    def prepare(self) -> None:
        import pyspark

        super().prepare()
        (self.folder / "tmp").mkdir()
        # A cluster of this kind writes into the folder where Spark is installed: not ours to fill.
        home = self.folder / "spark"
        home.mkdir()
        for entry in Path(pyspark.__file__).parent.iterdir():
            (home / entry.name).symlink_to(entry)

    def wanted(self) -> int:
        """Two micro-batches ahead of what the source has taken."""
        return FILES * (max(self.numbers("sources/0"), default=-1) + 3)

    def start_driver(self) -> subprocess.Popen[bytes]:
        places = {"SPARK_HOME": str(self.folder / "spark"), "TMPDIR": str(self.folder / "tmp")}
        return self.start("--role", "query", SPARK_LOCAL_IP="127.0.0.1", **places)

    def run(self, kills: int) -> Verdict:
        self.prepare()
        began = time.monotonic()
        writer, driver = self.start("--role", "write"), self.start_driver()
        try:
            for number, kind in enumerate(kinds(kills, self.rng), 1):
                self.wait_for_moment(driver)
                self.strike(kind, driver)
                if kind == "driver":
                    driver = self.start_driver()
                print(self._progress(number, kills, time.monotonic() - began), flush=True)
            (self.folder / "finish").touch()
            self._await_end(driver, "the last driver", PATIENCE)
            (self.folder / "stop").touch()
            self._await_end(writer, "the writer", 60)
        finally:
            kill(driver)
            kill(writer)
            left = await_end(self._orphans, 60)
            for process in left:
                process.kill()
        assert not left, f"processes outlived their driver by a minute: {left}"
        return verdict(self.folder, self.seed)

    def _await_end(self, process: subprocess.Popen[bytes], who: str, seconds: float) -> None:
        assert process.wait(seconds) == 0, f"{who} failed; see {self.folder / 'logs'}"

    def _progress(self, number: int, kills: int, seconds: float) -> str:
        last = self.kills[-1]
        where = "between micro-batches"
        if last.batch is not None:
            where = f"within micro-batch {last.batch}"
        left = seconds / number * (kills - number)
        return f"  kill {number}/{kills}: {last.kind}, {where}; about {left:.0f} s left"

    # --- when and whom ------------------------------------------------------------------------

    def wait_for_moment(self, driver: subprocess.Popen[bytes]) -> None:
        """Any; or soon after a task has begun; or, so that there is progress, a micro-batch."""
        mode = self.rng.choices(["any", "task", "batch"], [0.2, 0.3, 0.5])[0]
        if mode == "any":
            self.live(driver, self.rng.uniform(0, 4))
            return
        begun = self.tasks if mode == "task" else self.batches
        before = begun()
        self.live_until(f"a {mode} began", driver, lambda: begun() > before)
        self.live(driver, self.rng.uniform(0, 2))

    def live_until(
        self, what: str, driver: subprocess.Popen[bytes], condition: Callable[[], object]
    ) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
            self.live(driver, 0.05)

    def batches(self) -> int:
        return len(self.numbers("offsets"))

    def tasks(self) -> int:
        """How many attempts at tasks have begun."""
        log = self.folder / "tasks.log"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def repeated(self) -> int:
        lines = (self.folder / "tasks.log").read_text().splitlines()
        return sum(line.split()[2] != "0" for line in lines)

    def strike(self, kind: str, driver: subprocess.Popen[bytes]) -> None:
        """SIGKILL to one process, or to a driver and its JVM."""
        found: list[psutil.Process] = []

        def there() -> bool:
            found[:] = victims(kind, driver.pid)
            return bool(found)

        while True:
            self.live_until(f"there is a process of kind {kind}", driver, there)
            joining = [process for process in found if _maps(process, self.folder / "store")]
            aimed = joining and self.rng.random() < 0.7  # rather at the join than at what feeds it
            victim = self.rng.choice(joining if aimed else found)
            batch = self.under_way()
            try:
                if kind == "driver":
                    self._kill_driver(driver)
                else:
                    victim.kill()
                break
            except psutil.NoSuchProcess:
                continue  # it has ended by itself meanwhile
        if batch != self.under_way():
            batch = None  # it was committed just then
        self.kills.append(Kill(kind, batch, victim in joining))

    def _kill_driver(self, driver: subprocess.Popen[bytes]) -> None:
        """Its JVM first: left alone, that would end in good order. The executors find out."""
        family = psutil.Process(driver.pid).children(recursive=True)
        for process in [p for p in family if p.ppid() == driver.pid]:
            process.kill()
        driver.kill()
        driver.wait()
        self._orphans += family


def kinds(kills: int, rng: random.Random) -> list[str]:
    """Each at least once, where there are enough; in any order."""
    chosen = [*KINDS, *rng.choices(list(KINDS), list(KINDS.values()), k=max(0, kills - 3))]
    rng.shuffle(chosen)
    return chosen[:kills]


def victims(kind: str, driver: int) -> list[psutil.Process]:
    """The processes of a kind that belong to a driver now."""
    process = psutil.Process(driver)
    if kind == "driver":
        return [process]
    found = []
    for child in process.children(recursive=True):
        try:
            who = child if kind == "executor" else child.parent()
            words = [] if who is None else who.cmdline()
        except psutil.NoSuchProcess:
            continue
        name = "org.apache.spark.executor" if kind == "executor" else "pyspark.daemon"
        if any(word.startswith(name) for word in words):
            found.append(child)
    return found


def _maps(process: psutil.Process, path: Path) -> bool:
    """Whether it has files under `path` mapped."""
    try:
        return str(path) in Path(f"/proc/{process.pid}/maps").read_text()
    except OSError:
        return False
