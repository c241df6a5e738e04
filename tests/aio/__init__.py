"""Tests of the asyncio API."""
