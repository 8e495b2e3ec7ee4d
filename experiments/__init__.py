"""Experiments: the papers' claims, measured again; data, runs and the page that reports them."""
