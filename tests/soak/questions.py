"""What is asked: the same for the same seed. Texts share heads, so that prefixes are shared, restored and cut. Pure."""

from __future__ import annotations

import random

from tests.soak.dialects import Question

SENTENCE = (
    "the river takes its colour from the sky and a barrel of salt stood by the old mill where men counted sacks all "
    "morning until rain came over the hill and each clerk wrote down what was owed to whom in a long green book"
)
WORDS = SENTENCE.split()
HEAD_WORDS = (0, 30, 90)


def questions(seed: int, model: str, count: int, *, n_tokens: tuple[int, int] = (1, 60)) -> list[Question]:
    rng = random.Random(f"{seed}/{model}")
    heads = [_words(rng, n) for n in HEAD_WORDS]
    return [
        Question(
            model,
            text=f"{rng.choice(heads)} {_words(rng, rng.randint(1, 40))}",
            n_tokens=rng.randint(*n_tokens),
            raw=rng.random() < 0.3,
        )
        for _ in range(count)
    ]


def _words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))
