"""Something that fails again and again is told once, until it works again."""

from __future__ import annotations

import logging


class Trouble:
    """One kind of it. The first failure is a warning, those that follow it are for debugging. Any thread."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._is_told = False

    def tell(self, message: str, *args: object) -> None:
        self._logger.log(logging.DEBUG if self._is_told else logging.WARNING, message, *args)
        self._is_told = True

    def is_over(self) -> None:
        self._is_told = False
