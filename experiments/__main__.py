"""The papers' experiments, one command each.

python -m experiments                       list them
python -m experiments P4.1                  run one, at laptop scale
python -m experiments all --scale smoke     run all, as small as can be
python -m experiments P4.1 --draw           only chart and verdict, from the CSV that is there
python -m experiments page                  write docs/reproduction.md from what is there
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from benchmarks.lib.report import manifest, read_csv, say, write_csv, write_manifest
from experiments.lib import SCALES, Experiment, Run
from experiments.lib.charts import save
from experiments.page import DOCS, write_page
from experiments.registry import experiment, names


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="P4.1, ..., cache, all or page")
    parser.add_argument("--scale", choices=SCALES, default="laptop", help="laptop by default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="experiments-out/SCALE by default")
    parser.add_argument("--data", type=Path, default=Path("experiments-out/data"),
                        help="where tables are made and kept")  # fmt: skip
    parser.add_argument("--draw", action="store_true", help="measure nothing, use the CSV there")
    args = parser.parse_args(words)
    if not args.names:
        return show(args.scale)
    if args.names == ["page"]:
        say(f"wrote {write_page(args.out or DOCS)}")
        return 0
    wanted = names() if args.names == ["all"] else args.names
    unknown = [name for name in wanted if name not in names()]
    if unknown:
        parser.error(
            f"no experiment is called {', '.join(unknown)}; there are {', '.join(names())}"
        )
    out = args.out or Path("experiments-out") / args.scale
    run = Run(args.scale, args.seed, args.data)
    minutes = sum(experiment(name).minutes[args.scale] for name in wanted)
    say(f"{len(wanted)} experiments at {args.scale} scale, about {minutes:.0f} minutes in all")
    begun = time.monotonic()
    for name in wanted:
        one_run(experiment(name), run, out, args)
    say(f"\n{len(wanted)} experiments in {(time.monotonic() - begun) / 60:.1f} minutes")
    return 0


def show(scale: str) -> int:
    for name in names():
        found = experiment(name)
        say(f"{name:6} {found.minutes[scale]:4.1f} min  {found.title}")
    say(f"\nTimes are at {scale} scale. Run one with: python -m experiments NAME")
    return 0


def one_run(found: Experiment, run: Run, out: Path, args: argparse.Namespace) -> None:
    """Measure, write, draw, judge."""
    csv, record, chart = (out / name for name in found.files)
    out.mkdir(parents=True, exist_ok=True)
    if not args.draw:
        say(f"\n{found.id}: {found.title}\n  claim: {found.claim}; published: {found.paper}")
        say(f"  takes about {found.minutes[run.scale]:.1f} min; writes {csv}, {record.name}, "
            f"{chart.name}; tables go to {run.data}")  # fmt: skip
        begun = time.monotonic()
        rows = list(found.measure(run))
        write_csv(csv, rows)
        spent = time.monotonic() - begun
        devices = sorted({str(row["device"]) for row in rows if "device" in row})
        more = {"experiment": found.id, "scale": run.scale, "devices": devices}
        write_manifest(record, manifest(vars(args), run.seed, seconds=round(spent), **more))
        say(f"  measured in {spent:.0f} s")
    rows = read_csv(csv)
    save(found.draw(rows), chart)
    verdict = found.judge(rows)
    say(f"  {verdict.word}: {verdict.ours}\n  {verdict.reason}")


if __name__ == "__main__":
    sys.exit(main())
