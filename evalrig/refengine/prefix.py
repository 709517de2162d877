"""Prompts that were computed before: whole attention blocks of tokens, each behind the blocks that stand before it."""

from collections.abc import Sequence as Series
from dataclasses import dataclass

import numpy as np

from evalrig.refengine.arrays import I64


@dataclass(slots=True, kw_only=True, eq=False)
class Block:
    """Pages that hold the keys and values of one attention block of tokens, after one chain of blocks before it."""

    key: tuple[int, bytes]
    """The identity of the block before it (0: none) and its own ids, compared whole: a hash alone could collide."""
    identity: int
    pages: I64
    """[pages a block], in the order of their positions."""
    tags: I64
    """[pages a block]: what each page's tag was when the block was kept; checked before every use."""
    before: "Block | None"
    users: int = 0
    """Open sequences that read it."""
    followers: int = 0
    """Kept blocks that stand behind it: it cannot go before them."""
    used: int = 0
    """When it was last asked for, in calls of `match`."""
    kept: bool = True
    """False once it is out of the index: its pages go back when its last user closes."""


class PrefixIndex:
    """The kept blocks, found by their tokens."""

    def __init__(self, length: int) -> None:
        """`length`: tokens a block."""
        self.length = length
        self._blocks: dict[tuple[int, bytes], Block] = {}
        self._clock = 0

    @property
    def blocks(self) -> tuple[Block, ...]:
        """All kept blocks."""
        return tuple(self._blocks.values())

    @property
    def idle(self) -> tuple[Block, ...]:
        """Kept blocks that no open sequence reads."""
        return tuple(block for block in self._blocks.values() if not block.users)

    def match(self, tokens: Series[int]) -> tuple[Block, ...]:
        """The longest chain of kept blocks that `tokens` begin with."""
        found: list[Block] = []
        self._clock += 1
        for ids in self.cut(tokens):
            block = self.match_one(found[-1] if found else None, ids)
            if block is None:
                break
            block.used = self._clock
            found.append(block)
        return tuple(found)

    def match_one(self, before: Block | None, ids: bytes) -> Block | None:
        """The kept block of `ids` behind `before`."""
        return self._blocks.get((0 if before is None else before.identity, ids))

    def add(self, block: Block) -> None:
        """Keeps a block; the one before it must be kept."""
        self._blocks[block.key] = block
        block.used = self._clock
        if block.before is not None:
            block.before.followers += 1

    def remove(self, block: Block) -> list[Block]:
        """Takes a block out of the index, with all that stand behind it, and gives what it took out."""
        if not block.kept:
            return []
        gone = [block]
        for one in gone:  # grows while it is walked: a chain may be longer than Python's stack
            gone += [other for other in self._blocks.values() if other.before is one]
        for one in gone:
            del self._blocks[one.key]
            one.kept = False
        if block.before is not None:
            block.before.followers -= 1
        return gone

    def oldest(self) -> Block | None:
        """The block to give up first: read by nobody, with none behind it, longest not asked for."""
        free = [block for block in self._blocks.values() if not block.users and not block.followers]
        return min(free, key=lambda block: block.used, default=None)

    def cut(self, tokens: Series[int]) -> list[bytes]:
        """The ids of each whole block of `tokens`."""
        whole = len(tokens) // self.length
        ids = np.asarray(tokens[: whole * self.length], np.int32)
        return [ids[index * self.length : (index + 1) * self.length].tobytes() for index in range(whole)]
