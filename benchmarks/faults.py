"""Kill Python workers, executors and drivers under a streaming query, and look at what it wrote.

    python -m benchmarks.faults --kills 100 --seed 1

A stream of files is enriched on a cluster of two executors in processes of their own, while the
master changes about once a second. Kills come as SIGKILL, mostly within two seconds after a task or
a micro-batch has begun, sometimes at any moment. Spark makes workers and executors anew; a driver
is started again from the checkpoint, while the executors of the dead one may still be running. In
the end every row is checked, and every micro-batch (`faults_verdict.py`).
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from .campaign import Campaign, await_end, kill, write
from .faults_query import FILES, query
from .faults_verdict import Verdict, verdict

PATIENCE = 180  # seconds
KINDS = {"worker": 0.5, "executor": 0.35, "driver": 0.15}  # how often each is killed


# --- the campaign ---------------------------------------------------------------------------------


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


# --- the report -----------------------------------------------------------------------------------


def report(campaign: Faults, found: Verdict, seconds: float) -> dict[str, Any]:
    kills = campaign.kills
    return {
        "kills": len(kills),
        "seed": campaign.seed,
        "kinds": dict(Counter(k.kind for k in kills)),
        "within_a_micro_batch": dict(Counter(k.kind for k in kills if k.batch is not None)),
        "workers_with_the_store_open": sum(k.joining for k in kills if k.kind == "worker"),
        "task_attempts": campaign.tasks(),
        "task_attempts_repeated": campaign.repeated(),
        **asdict(found),
        "passed": found.clean,
        "bound_95": round(3 / len(kills), 6) if found.clean else None,
        "seconds": round(seconds, 1),
    }


def words(result: dict[str, Any], found: Verdict) -> str:
    hits = result["within_a_micro_batch"]
    each = ", ".join(f"{n} {kind}s ({hits.get(kind, 0)})" for kind, n in result["kinds"].items())
    bound = f"; harm per kill below {result['bound_95']:.1%} (3/n, 95 %)" if found.clean else ""
    return (
        f"seed {result['seed']}: {result['kills']} kills, {sum(hits.values())} of them within a "
        f"micro-batch: {each}\n"
        f"{result['workers_with_the_store_open']} workers had the store open; "
        f"{result['task_attempts']} attempts at tasks, {result['task_attempts_repeated']} of them "
        f"not the first\n{found}\n"
        f"{'passed' if found.clean else 'FAILED'} in {result['seconds']:.0f} s{bound}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("bench-out/faults"), help="made anew")
    parser.add_argument("--json", type=Path, help="write the result to this file")
    parser.add_argument("--role", choices=["query", "write"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder = arguments.out.absolute()
    if arguments.role == "write":
        write(folder, arguments.seed, expire="30s")
    elif arguments.role == "query":
        query(folder)
    else:
        if arguments.kills < 1:
            parser.error(f"--kills {arguments.kills}: at least 1")
        began, campaign = time.monotonic(), Faults(folder, arguments.seed)
        found = campaign.run(arguments.kills)
        result = report(campaign, found, time.monotonic() - began)
        print(words(result, found))
        if arguments.json:
            arguments.json.write_text(json.dumps(result, indent=1) + "\n")
        return 0 if found.clean else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
