"""Measurements, one file per question. ``python -m benchmarks --help`` runs them; results are committed."""
