"""The papers' experiments, one command each: `python -m experiments P4.1 --scale laptop`.

masters, streams ──> measure ──> P4.1.csv + P4.1.json ──> P4.1.png ──> docs/reproduction.md
                      rates        rows     where from     chart        claims and verdicts

base.py          what an experiment is, and what it says
measure.py       one join, warmed up and measured, on a modelled disk or on this machine
masters.py, streams.py and others    the data
charts.py        how all charts look
p4_1_... .py     one file per claim, named after it: what is measured, the chart, the verdict
page.py          the page of all verdicts, from the CSV files alone
"""
