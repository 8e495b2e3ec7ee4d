"""What experiments share. This face has the words in which every experiment is written.

experiment.py    what an experiment is, and what it says
cell.py          one cell of a grid: a join, its data, the disk, the knobs
measure.py       a cell measured: warmed up, on a modelled disk or on this machine
rows.py          look at measured rows
charts.py        how all charts look
modelled.py, paper_cpu.py     a modelled disk, and the processor of the papers
overload.py      a join that gets more rows than it can serve

What the claims of a paper share:

mesh_sizes.py    P4, MESHJOIN: its memory as the paper counts it
buffer_scans.py  P2, the default buffer: scans whose buffer and waiting rows add up to M
hybrid_claims.py P1, HYBRIDJOIN: X-HYBRIDJOIN as published, and the laws
front_claims.py, front_charts.py, front_data_sets.py     P0 and P3, joins with a front stage
"""

from experiments.lib.experiment import (
    DIRECTION,
    NOT,
    REPRODUCED,
    SCALES,
    Experiment,
    Progress,
    Row,
    Run,
    Verdict,
    each,
)

__all__ = [
    "DIRECTION",
    "NOT",
    "REPRODUCED",
    "SCALES",
    "Experiment",
    "Progress",
    "Row",
    "Run",
    "Verdict",
    "each",
]
