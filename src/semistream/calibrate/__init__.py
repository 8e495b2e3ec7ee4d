"""Calibration: what reading costs on this machine, measured."""

from .pages import PageCost, PageTable, measure_pages
from .reads import ReadTable, measure_reads

__all__ = ["PageCost", "PageTable", "ReadTable", "measure_pages", "measure_reads"]
