"""Kill Python workers, executors and drivers under a streaming query, and look at what it wrote.

    python -m benchmarks.faults --kills 100 --seed 1

A stream of files is enriched on a cluster of two executors in processes of their own, while the
master changes about once a second. Kills come as SIGKILL, mostly within two seconds after a task or
a micro-batch has begun, sometimes at any moment. Spark makes workers and executors anew; a driver
is started again from the checkpoint, while the executors of the dead one may still be running. In
the end every row is checked, and every micro-batch (`verdict.py`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.faults.campaign import Faults
from benchmarks.faults.query import query
from benchmarks.faults.verdict import Verdict
from benchmarks.lib.campaign import write


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
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults", description=(__doc__ or "").partition("\n")[0]
    )
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
