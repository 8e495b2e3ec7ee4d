"""Calibration: what computing and reading cost on this machine, measured."""

from .costs import Costs, measure_costs
from .pages import PageCost, PageTable, measure_pages
from .reads import ReadTable, measure_reads

__all__ = [
    "Costs",
    "PageCost",
    "PageTable",
    "ReadTable",
    "measure_costs",
    "measure_pages",
    "measure_reads",
]
