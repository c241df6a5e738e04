"""How long a template may be studied."""

from __future__ import annotations

import pytest

from barrel_inference.chat.templates.profile import MAX_STUDY_S, study
from barrel_inference.chat.templates.template import Template
from barrel_inference.errors import TemplateError


class SlowTemplate(Template):
    """Each rendering takes as long as it is told, on a clock of its own."""

    def __init__(self, seconds: float) -> None:
        super().__init__("chatml")
        self.now = 0.0
        self.renderings = 0
        self._seconds = seconds

    def text(self, messages: object, **values: object) -> str:
        self.now += self._seconds
        self.renderings += 1
        return super().text(messages, **values)  # type: ignore[arg-type]


def test_one_that_is_slow_again_and_again_is_given_up() -> None:
    template = SlowTemplate(4.0)
    with pytest.raises(TemplateError, match="too slow"):
        study(template, lambda: template.now)
    assert template.renderings <= MAX_STUDY_S / 4 + 1


def test_one_that_takes_its_time_is_not() -> None:
    template = SlowTemplate(0.05)
    assert study(template, lambda: template.now).form.system
    assert template.renderings < 100
