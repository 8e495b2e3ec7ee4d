"""All experiments by name: `P4.1` is the `EXPERIMENT` of claims/p4_1_memory.py, `cache` that of
studies/cache.py."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from experiments.lib import Experiment

# In the order of the papers: MESHJOIN, its default buffer, X-HYBRIDJOIN, CMESHJOIN, CACHEJOIN.
CLAIMS = (
    "P4.1", "P4.2", "P4.3", "P4.4", "P4.5", "P2.1", "P2.2", "P2.3",
    "P1.1", "P1.2", "P1.3", "P1.4", "P1.5", "P0.1", "P0.2", "P0.3",
    "P3.1", "P3.2", "P3.3", "P3.4", "P3.5", "P3.6", "P3.7", "P3.8", "P3.9",
)  # fmt: skip
STUDIES = ("cache", "bursts")


@cache
def modules() -> dict[str, str]:
    """Name of the experiment -> name of its module."""
    claims = sorted((Path(__file__).parent / "claims").glob("p*.py"))
    found = {study: f"experiments.studies.{study}" for study in STUDIES}
    for path in claims:
        paper, number, _ = path.stem.split("_", 2)
        found[f"{paper.upper()}.{number}"] = f"experiments.claims.{path.stem}"
    return found


def names() -> list[str]:
    return [name for name in (*CLAIMS, *STUDIES) if name in modules()]


def experiment(name: str) -> Experiment:
    found: Experiment = import_module(modules()[name]).EXPERIMENT
    if found.id != name:
        raise ValueError(f"the experiment in {modules()[name]} calls itself {found.id}")
    return found
