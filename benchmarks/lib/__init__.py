"""What the benchmarks share; tests and experiments use some of it.

workload.py   the data: a master table and a skewed stream, seeded, any size
stores.py     stores of that data, made once
running.py    run a join in a process of its own, every output row built
warm_up.py    how long until a join's state is steady
report.py     medians, tables, CSV and the manifest that says where they came from
servers.py    private PostgreSQL and MariaDB servers
campaign.py   kills: a master that changes, a stream of files, processes to kill
"""
