"""The cost model: what a join costs, as formulas on plain numbers.

    zipf                    sums over a skewed stream in closed form; the others are made of them
    mesh, hybrid, cached    the published equations, one function each, and corrected ones beside
    renewal                 rows per read of hybridjoin's family
    planned                 pages that ssij reads
    sweeps                  sweepjoin, all at once and in parts
    family                  disk work per stream row, for every algorithm

Nothing here reads a file or knows Arrow. docs/model.md joins the papers' symbols to words, and says
how far each law is off.
"""
