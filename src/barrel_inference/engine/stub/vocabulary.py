"""The stub's vocabulary: every byte, some words, and control tokens. Constant; any text survives the round trip."""

from __future__ import annotations

import re

SPECIAL = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")
_WORDS = (
    "the a of and in to is that it was for on are as with his they at be this from have or by one had not but what all"
    " were when we there can an your which their said if do will each about how up out them then she many some so these"
    " would other into has more her two like him see time could no make than first been its who now people my made over"
    " did down only way find use may water long little very after words called just where most know barrel"
)
PIECES = [*(bytes([byte]) for byte in range(256)), *(b" " + word.encode() for word in _WORDS.split()), b". ", b"\n"]
FIRST_WORD = 256
FIRST_SPECIAL = len(PIECES)
N_VOCAB = FIRST_SPECIAL + len(SPECIAL)
_TWO_BYTE = "äéñ€".encode()
_SPECIAL_TEXT = re.compile(b"|".join(re.escape(text.encode()) for text in SPECIAL))
_LONGEST_FIRST = sorted(range(FIRST_WORD, FIRST_SPECIAL), key=lambda token: -len(PIECES[token]))
_WORD_TEXT = re.compile(b"|".join(re.escape(PIECES[token]) for token in _LONGEST_FIRST))
_TOKEN_OF = {PIECES[token]: token for token in range(FIRST_WORD, FIRST_SPECIAL)}


class StubVocabulary:
    n_tokens = N_VOCAB
    bos = FIRST_SPECIAL
    eos = FIRST_SPECIAL + 1
    eog_tokens = frozenset((FIRST_SPECIAL + 1, FIRST_SPECIAL + 3))

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
        tokens = [self.bos] if add_special else []
        at = 0
        for special in _SPECIAL_TEXT.finditer(text) if parse_special else ():
            tokens += _plain(text[at : special.start()])
            tokens.append(FIRST_SPECIAL + SPECIAL.index(special.group().decode()))
            at = special.end()
        return tokens + _plain(text[at:])

    def piece(self, token: int, *, special: bool) -> bytes:
        if token >= FIRST_SPECIAL:
            return SPECIAL[token - FIRST_SPECIAL].encode() if special else b""
        return PIECES[token]

    def is_control(self, token: int) -> bool:
        return token >= FIRST_SPECIAL

    def follower(self, last: int, chance: int) -> int:
        """A token that may follow: mostly words; now and then a character of several bytes, which is then finished."""
        at = _TWO_BYTE.find(PIECES[last]) if last < FIRST_WORD else -1
        if at >= 0 and at + 1 < len(_TWO_BYTE) and _TWO_BYTE[at + 1] & 0xC0 == 0x80:
            return _TWO_BYTE[at + 1]
        if chance % 16 == 0:
            return _TWO_BYTE[(chance >> 8) % 3 * 2]
        return FIRST_WORD + chance % (FIRST_SPECIAL - FIRST_WORD)


def _plain(text: bytes) -> list[int]:
    tokens: list[int] = []
    at = 0
    for word in _WORD_TEXT.finditer(text):
        tokens += text[at : word.start()]
        tokens.append(_TOKEN_OF[word.group()])
        at = word.end()
    return tokens + list(text[at:])
