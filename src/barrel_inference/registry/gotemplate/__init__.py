"""x"""


def check(text: str) -> None: ...
