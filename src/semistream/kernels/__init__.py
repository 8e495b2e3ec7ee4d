"""Compiled loops: addresses and arrays in, arrays out; no Arrow, nothing kept alive."""
