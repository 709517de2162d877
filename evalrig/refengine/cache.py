"""The paged KV cache: pages of 16 tokens, each with an owner and a generation, handed out to sequences and checked at
every step."""

from collections.abc import Sequence as Series
from dataclasses import dataclass, field

import numpy as np

from evalrig.refengine.arrays import F32, I32, I64
from evalrig.refengine.formats import KvFormat
from evalrig.refengine.model import Architecture
from evalrig.refengine.prefix import Block, PrefixIndex

PAGE = 16
"""Tokens a page."""
BLOCK = 4 * PAGE
"""Attention runs in blocks cut at multiples of this many positions, and chunks of a prompt end on them: how a prompt is
cut into chunks, and who else decodes, then cannot change a bit."""
GROUP_TOKENS = 1024
"""Tokens gathered at a time for sequences that decode together: keys and values then stay in the processor's cache."""
BLOCK_PAGES = BLOCK // PAGE
NOBODY = -1
_MOST_IDENTITIES = 2**31 - 1


class PageTagError(RuntimeError):
    """A sequence was about to touch a page that is not its own, or not the generation it was given: the numbers would
    be wrong."""


class OutOfPages(RuntimeError):
    """The pool cannot promise the pages asked for now."""


@dataclass(slots=True, kw_only=True)
class CachedSequence:
    """One sequence's claim on the cache. Made by `PagedCache.open`, void after `PagedCache.close`."""

    identity: int
    """The owner tag of its pages; used again only after two billion others."""
    row: int
    """Its line in the page table."""
    reserved: int
    """Pages promised at admission, kept ones that it reads not counted."""
    length: int = 0
    """Tokens whose keys and values are in the cache."""
    blocks: tuple[Block, ...] = field(default=(), repr=False)
    """Kept blocks that it begins with: read, never written."""

    @property
    def lent(self) -> int:
        """Pages of `blocks`."""
        return len(self.blocks) * BLOCK_PAGES


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // PAGE)


class PagedCache:
    """Keys and values of all sequences, in physical pages of one pool.

    A sequence's pages are reserved when it is opened and taken when it grows, so a running sequence never runs out.
    Each page's tag is (owner, generation); the generation counts how often the page was handed out, so that a stale
    table entry is caught even if the page went back to the same owner.

    With a prefix index, whole blocks of a closed sequence's prompt are kept for later sequences that begin with the
    same tokens. A kept page gets an owner of its own, so that two of them cannot stand in for each other. Reuse ends on
    a BLOCK: the rest of the prompt is then computed in the very pieces it would be computed in without it.
    """

    def __init__(self, architecture: Architecture, kv_format: KvFormat, *, pages: int, rows: int, context: int) -> None:
        """A pool of `pages` pages for at most `rows` sequences of at most `context` tokens; keeps no prefix until
        `keep_prefixes`."""
        shape = (PAGE, architecture.kv_heads, architecture.head_dim)
        columns = pages_for(-(-context // BLOCK) * BLOCK)
        self.format = kv_format
        self.pages = pages
        self.scales: F32 = np.ones((architecture.layers, 2, architecture.kv_heads, 1), np.float32)
        """[layer, keys | values, head, 1]: what a value is divided by before it is rounded to the format."""
        self.owner_and_generation: I32 = np.zeros((pages + 1, 2), np.int32)
        """[page, owner | generation]; the owner is a sequence's identity, or NOBODY."""
        self.owner_and_generation[:, 0] = NOBODY
        self._tags: I64 = self.owner_and_generation.view(np.int64)[:, 0]
        # One page more than is ever handed out: it stays zero, and stands in the table where a sequence has no page.
        self._nothing = pages
        self._pool: F32 = np.zeros((architecture.layers, 2, pages + 1, *shape), np.float32)
        self._table: I64 = np.full((rows, columns), self._nothing, np.int64)
        self._expected: I64 = np.full((rows, columns), NOBODY, np.int64)
        self._gathered: F32 = np.empty((2, max(columns, GROUP_TOKENS // PAGE), *shape), np.float32)
        self._columns: I64 = np.arange(columns)
        self._free = list(range(pages))[::-1]
        self._rows = list(range(rows))[::-1]
        self._reserved = 0
        self._kept = 0
        self._identity = 0
        self._prefixes: PrefixIndex | None = None

    def keep_prefixes(self) -> None:
        """From now on prompts are kept."""
        self._prefixes = PrefixIndex(BLOCK)

    @property
    def used_pages(self) -> int:
        """Pages that hold tokens of open sequences now."""
        return self.pages - len(self._free) - self.idle_pages

    @property
    def idle_pages(self) -> int:
        """Pages that are kept for later and read by nobody now."""
        return 0 if self._prefixes is None else len(self._prefixes.idle) * BLOCK_PAGES

    @property
    def reserved_pages(self) -> int:
        """Pages promised to open sequences, whether used yet or not."""
        return self._reserved

    def open(self, tokens: int, known: Series[int] = ()) -> CachedSequence:
        """A new sequence that may grow to `tokens` tokens. OutOfPages when pages or rows are lacking now.

        `known`: tokens it begins with. As many of them as are kept are in it from the start: `length` says how many.
        """
        blocks = () if self._prefixes is None else self._prefixes.match(known)
        need = pages_for(tokens) - len(blocks) * BLOCK_PAGES
        for block in blocks:
            block.users += 1
        if not self._rows or pages_for(tokens) > len(self._columns) or not self._make_room(need):
            self._release(blocks)
            raise OutOfPages(f"{need} pages asked for, {self.pages - self._reserved} of {self.pages} not promised")
        self._reserved += need
        sequence = CachedSequence(identity=self._next_identity(), row=self._rows.pop(), reserved=need, blocks=blocks)
        for index, block in enumerate(blocks):
            columns = slice(index * BLOCK_PAGES, (index + 1) * BLOCK_PAGES)
            self._table[sequence.row, columns] = block.pages
            self._expected[sequence.row, columns] = block.tags
        sequence.length = len(blocks) * BLOCK
        return sequence

    def _next_identity(self) -> int:
        self._identity = self._identity % _MOST_IDENTITIES + 1
        return self._identity

    def _make_room(self, need: int) -> bool:
        """Gives up idle kept blocks, the oldest first, until `need` pages can be promised."""
        while self._reserved + self._kept + need > self.pages:
            oldest = None if self._prefixes is None else self._prefixes.oldest()
            if oldest is None:
                return False
            self._forget(oldest)
        return True

    def close(self, sequence: CachedSequence, prompt: Series[int] = ()) -> None:
        """Gives the sequence's pages and its promise back. `prompt`: the tokens it began with, to be kept."""
        if self._prefixes is not None:
            self._keep(sequence, self._prefixes, prompt[: sequence.length])
        row = self._table[sequence.row]
        own = row[sequence.lent :]
        self._give_back(own[own != self._nothing])
        row[:] = self._nothing
        self._expected[sequence.row] = NOBODY
        self._rows.append(sequence.row)
        self._reserved -= sequence.reserved
        sequence.reserved = 0
        self._release(sequence.blocks)
        sequence.blocks = ()

    def distrust(self, sequence: CachedSequence) -> None:
        """Drops the kept blocks that a sequence reads: a step over them failed, and nobody shall meet them again."""
        for block in sequence.blocks:
            self._forget(block)

    def forget_prefixes(self) -> None:
        """Drops every kept block."""
        for block in () if self._prefixes is None else self._prefixes.blocks:
            self._forget(block)

    def _keep(self, sequence: CachedSequence, index: PrefixIndex, prompt: Series[int]) -> None:
        """Turns the sequence's own pages of whole blocks of `prompt` into kept ones, where no equal block is kept."""
        before: Block | None = None
        for place, ids in enumerate(index.cut(prompt)):
            found = index.match_one(before, ids)
            if found is None and place >= len(sequence.blocks):
                found = self._take_over(sequence, before, ids, place)
                index.add(found)
            if found is None:
                return  # a block it read was dropped while it ran
            before = found

    def _take_over(self, sequence: CachedSequence, before: Block | None, ids: bytes, place: int) -> Block:
        columns = slice(place * BLOCK_PAGES, (place + 1) * BLOCK_PAGES)
        pages = self._table[sequence.row, columns].copy()
        for page in pages:
            self.owner_and_generation[page, 0] = self._next_identity()
            self.owner_and_generation[page, 1] += 1
        self._table[sequence.row, columns] = self._nothing
        self._kept += BLOCK_PAGES
        key = (0 if before is None else before.identity, ids)
        return Block(key=key, identity=self._identity, pages=pages, tags=self._tags[pages], before=before)

    def _release(self, blocks: Series[Block]) -> None:
        for block in blocks:
            block.users -= 1
            if not block.kept and not block.users:
                self._free_block(block)

    def _forget(self, block: Block) -> None:
        assert self._prefixes is not None, "there are blocks"
        gone = self._prefixes.remove(block)
        for one in gone:
            if not one.users:
                self._free_block(one)

    def _free_block(self, block: Block) -> None:
        self._kept -= BLOCK_PAGES
        self._give_back(block.pages)

    def _give_back(self, pages: I64) -> None:
        self.owner_and_generation[pages, 0] = NOBODY
        self._free.extend(pages.tolist()[::-1])

    def grow(self, sequence: CachedSequence, tokens: int) -> None:
        """Takes pages so that the sequence can hold `tokens` tokens in all. OutOfPages beyond its promise."""
        first, end = pages_for(sequence.length), pages_for(tokens)
        if end - sequence.lent > sequence.reserved:
            raise OutOfPages(f"sequence {sequence.identity} was promised {sequence.reserved} pages and asks for {end}")
        for column in range(first, end):
            if self._table[sequence.row, column] != self._nothing:
                continue  # taken by a step that failed before the sequence's length moved on
            page = self._free.pop()
            self._pool[:, :, page] = 0  # nothing of its last owner can be read through it
            self.owner_and_generation[page, 0] = sequence.identity
            self.owner_and_generation[page, 1] += 1
            self._table[sequence.row, column] = page
            self._expected[sequence.row, column] = self._tags[page]

    def check(self, sequences: Series[CachedSequence], ends: Series[int]) -> None:
        """PageTagError unless every page that `sequences` touch up to `ends` tokens carries their own tag."""
        bad: list[int] = []
        for sequence, end in zip(sequences, ends, strict=True):
            count = pages_for(end)
            found = self._tags[self._table[sequence.row, :count]]
            # Bytes compare in one call; at a batch of one, each numpy call would show in the cost of a step.
            if found.tobytes() != self._expected[sequence.row, :count].tobytes():
                bad.append(sequence.identity)
        if bad:
            raise PageTagError(f"pages of sequences {bad} carry a foreign owner or generation")

    def slots(self, rows: I64, positions: I64) -> tuple[I64, I64]:
        """Page and place in it of each (table row, position), both [n]."""
        return self._table[rows, positions // PAGE], positions % PAGE

    def write(self, layer: int, slots: tuple[I64, I64], keys: F32, values: F32) -> None:
        """Rounds keys and values [n, kv_heads, head_dim] to the format and stores them at `slots`."""
        for which, fresh in enumerate((keys, values)):
            scale = self.scales[layer, which]
            self._pool[layer, which][slots] = self.format.round(fresh / scale) * scale

    def read(self, layer: int, sequence: CachedSequence, length: int) -> tuple[F32, F32]:
        """Keys [kv_heads, head_dim, length] and values [kv_heads, length, head_dim]; valid until the next read."""
        pages = self._table[sequence.row, : pages_for(length)]
        keys, values = self._gather(layer, pages)
        return keys[:length].transpose(1, 2, 0), values[:length].transpose(1, 0, 2)

    def read_group(self, layer: int, sequences: Series[CachedSequence], length: int) -> tuple[F32, F32]:
        """Keys [n, kv_heads, head_dim, T] and values [n, kv_heads, T, head_dim]; valid until the next read.

        T is `length` rounded up to whole pages; what a sequence does not have is zero. n * T is at most GROUP_TOKENS,
        or n is 1.
        """
        rows = [sequence.row for sequence in sequences]
        keys, values = self._gather(layer, self._table[rows, : pages_for(length)].ravel())
        shape = (len(rows), -1, *keys.shape[1:])
        return keys.reshape(shape).transpose(0, 2, 3, 1), values.reshape(shape).transpose(0, 2, 1, 3)

    def _gather(self, layer: int, pages: I64) -> tuple[F32, F32]:
        """Keys and values of `pages`, one after another: both [len(pages) * PAGE, kv_heads, head_dim]."""
        keys, values = self._gathered[:, : len(pages)]
        self._pool[layer, 0].take(pages, axis=0, out=keys, mode="clip")
        self._pool[layer, 1].take(pages, axis=0, out=values, mode="clip")
        flat = (-1, *keys.shape[2:])
        return keys.reshape(flat), values.reshape(flat)
