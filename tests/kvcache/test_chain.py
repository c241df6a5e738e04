"""Keys over token ids."""

from __future__ import annotations

import subprocess
import sys

from barrel_inference.config import BLOCK_TOKENS
from barrel_inference.kvcache.chain import Chain, pack_tokens, unpack_tokens

NS = b"n" * 32


def test_a_chain_grows_as_a_whole_one() -> None:
    tokens = list(range(1000))
    grown = Chain(NS, "salt")
    for n in (10, 64, 65, 500, 1000):
        grown.extend(tokens[:n])
    assert grown.keys == Chain(NS, "salt").extend(tokens)
    assert len(grown.keys) == 1 + 1000 // BLOCK_TOKENS


def test_a_cut_chain_goes_on_with_other_tokens() -> None:
    chain = Chain(NS)
    chain.extend(list(range(200)))
    chain.cut(100)
    other = [*range(100), *range(500, 600)]
    assert chain.extend(other) == Chain(NS).extend(other)


def test_one_token_changes_every_later_key() -> None:
    tokens = list(range(300))
    a = Chain(NS).extend(tokens)
    tokens[70] += 1
    b = Chain(NS).extend(tokens)
    assert a[:2] == b[:2]
    assert all(x != y for x, y in zip(a[2:], b[2:], strict=True))


def test_salt_and_namespace_change_every_key() -> None:
    tokens = list(range(128))
    chains = [Chain(NS), Chain(NS, "a"), Chain(NS, "b"), Chain(b"m" * 32)]
    keys = [key for chain in chains for key in chain.extend(tokens)]
    assert len(set(keys)) == len(keys)


def test_tokens_survive_packing() -> None:
    tokens = (0, 1, 2**31, 2**32 - 1)
    assert unpack_tokens(pack_tokens(tokens)) == tokens
    assert pack_tokens([1]) == b"\x01\0\0\0"


def test_mistake_13_another_process_makes_the_same_keys() -> None:
    code = (
        "from barrel_inference.kvcache.chain import Chain;"
        "print(Chain(b'n' * 32, 'salt').extend(list(range(640)))[-1].hex())"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert runs == {Chain(NS, "salt").extend(list(range(640)))[-1].hex() + "\n"}
