"""Tests; own nothing."""
