"""Masters and streams of the experiments.

products.py, many_to_many.py       synthetic masters: a key once, or many times
streams.py, drifting.py            synthetic streams, by a Zipf law that stays or changes
arrivals.py                        when rows arrive: steadily, or in bursts
tpch.py, weather.py                TPC-H by its generator; cloud reports, or a surrogate
journey.py, flights.py, trace.py   recorded baskets and flights, and how records become streams
kept_stores.py, generate.py        stores that are made once; large ones are made by Spark
"""
