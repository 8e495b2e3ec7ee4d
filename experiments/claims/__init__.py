"""One file per claim of the papers, named after it: what is measured, the verdict, the chart."""
