"""The tests of `semistream.x.y` are tests/x/test_y.py; those of the join as a whole in contract."""
