"""Tests of the measuring itself."""
