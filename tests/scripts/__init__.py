"""Tests of what people and CI call."""
