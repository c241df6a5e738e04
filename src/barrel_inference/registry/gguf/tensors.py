"""The tensor half of a GGUF header: element types with their block sizes, and the checks on each tensor's claim to a
place in the file. Pure; owns nothing."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from barrel_inference.errors import InvalidModelError

MAX_DIMENSIONS = 4
MAX_ELEMENTS = (1 << 63) - 1


class ElementType(NamedTuple):
    name: str
    block: int  # elements a block holds
    block_bytes: int


# Ids as ggml numbers them; the gaps are types that were removed and must not be loaded any more.
ELEMENT_TYPES: dict[int, ElementType] = {
    0: ElementType("f32", 1, 4),
    1: ElementType("f16", 1, 2),
    2: ElementType("q4_0", 32, 18),
    3: ElementType("q4_1", 32, 20),
    6: ElementType("q5_0", 32, 22),
    7: ElementType("q5_1", 32, 24),
    8: ElementType("q8_0", 32, 34),
    9: ElementType("q8_1", 32, 36),
    10: ElementType("q2_K", 256, 84),
    11: ElementType("q3_K", 256, 110),
    12: ElementType("q4_K", 256, 144),
    13: ElementType("q5_K", 256, 176),
    14: ElementType("q6_K", 256, 210),
    15: ElementType("q8_K", 256, 292),
    16: ElementType("iq2_xxs", 256, 66),
    17: ElementType("iq2_xs", 256, 74),
    18: ElementType("iq3_xxs", 256, 98),
    19: ElementType("iq1_s", 256, 50),
    20: ElementType("iq4_nl", 32, 18),
    21: ElementType("iq3_s", 256, 110),
    22: ElementType("iq2_s", 256, 82),
    23: ElementType("iq4_xs", 256, 136),
    24: ElementType("i8", 1, 1),
    25: ElementType("i16", 1, 2),
    26: ElementType("i32", 1, 4),
    27: ElementType("i64", 1, 8),
    28: ElementType("f64", 1, 8),
    29: ElementType("iq1_m", 256, 56),
    30: ElementType("bf16", 1, 2),
    34: ElementType("tq1_0", 256, 54),
    35: ElementType("tq2_0", 256, 66),
    39: ElementType("mxfp4", 32, 17),
    40: ElementType("nvfp4", 64, 36),
    41: ElementType("q1_0", 128, 18),
    42: ElementType("q2_0", 64, 18),
}


class Tensor(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type: str
    offset: int  # bytes from the start of the data section
    size_bytes: int

    @property
    def n_elements(self) -> int:
        return prod(self.shape)


def check_tensor(name: str, shape: tuple[int, ...], type_id: int, offset: int) -> Tensor:
    """A tensor whose own numbers agree with each other; ``InvalidModelError`` naming the one that does not."""
    kind = ELEMENT_TYPES.get(type_id)
    if kind is None:
        raise InvalidModelError(f"tensor {name!r} has the unknown type {type_id}")
    n_elements = prod(shape)
    if n_elements > MAX_ELEMENTS:
        raise InvalidModelError(f"tensor {name!r} claims {n_elements} elements")
    if shape and shape[0] % kind.block:
        raise InvalidModelError(
            f"tensor {name!r} has rows of {shape[0]} elements, {kind.name} needs multiples of {kind.block}"
        )
    return Tensor(name, shape, kind.name, offset, n_elements // kind.block * kind.block_bytes)


def check_layout(tensors: tuple[Tensor, ...], alignment: int, data_bytes: int) -> None:
    """Tensors must lie one after another, aligned, without gaps or overlaps, inside ``data_bytes``."""
    end = 0
    for tensor in tensors:
        if tensor.offset != end:
            raise InvalidModelError(f"tensor {tensor.name!r} is at offset {tensor.offset}, expected {end}")
        if tensor.offset + tensor.size_bytes > data_bytes:
            missing = tensor.offset + tensor.size_bytes - data_bytes
            raise InvalidModelError(
                f"tensor {tensor.name!r} ends {missing} bytes after the end of the file (truncated?)"
            )
        end = -(-(tensor.offset + tensor.size_bytes) // alignment) * alignment
