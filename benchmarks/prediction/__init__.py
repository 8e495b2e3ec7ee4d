"""Prediction against measurement."""
