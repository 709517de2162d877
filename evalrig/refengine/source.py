"""Where a model comes from: a GGUF file, or a folder of safetensors; either gives the same parts in the same order."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from evalrig.errors import UsageError
from evalrig.refengine.architecture import Architecture, Shape, parts
from evalrig.refengine.arrays import F32

if TYPE_CHECKING:
    from evalrig.refengine.chat_template import ChatTemplate
    from evalrig.refengine.tokenizer import Tokenizer


class Source(Protocol):
    """An opened checkpoint; the tensors' bytes stay mapped until they are asked for."""

    @property
    def path(self) -> Path:
        """The file or the folder."""
        ...

    @property
    def sha256(self) -> str:
        """Digest over everything that decides numbers, hexadecimal."""
        ...

    @property
    def layout(self) -> str:
        """`gguf` or `safetensors`."""
        ...

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Tensors by part (GGUF's names); what is no part keeps the name it has in the checkpoint."""
        ...

    def called(self, part: str) -> str:
        """What the checkpoint calls a part."""
        ...

    def architecture(self) -> Architecture:
        """UsageError for a family or a variation this engine does not compute."""
        ...

    def tensor(self, part: str) -> F32:
        """[out, in] for a matrix, [n] for a vector; element i of a query or key head turns with i + head_dim / 2."""
        ...

    def tokenizer(self) -> "Tokenizer":
        """UsageError for a kind of tokenizer that this engine does not build."""
        ...

    def template(self) -> "ChatTemplate":
        """One that refuses every conversation, where the checkpoint has none."""
        ...


def open_source(path: Path) -> Source:
    """The model at `path`: a folder, or a GGUF file.

    Raises UsageError when there is none, it is cut short, or it holds numbers in a type this engine cannot read.
    """
    from evalrig.refengine.folder_source import open_folder
    from evalrig.refengine.gguf_source import GgufSource, open_gguf

    return open_folder(path) if path.is_dir() else GgufSource(file=open_gguf(path))


def check_parts(source: Source, architecture: Architecture) -> None:
    """UsageError for a part that is missing, has another shape, or would be left out of the computation."""
    wanted, stored = parts(architecture, source.shapes), source.shapes
    for part, shape in wanted.items():
        if part not in stored:
            raise UsageError(f"{source.path}: there is no tensor {source.called(part)!r}; convert or fetch it again")
        if stored[part] != shape:
            raise UsageError(
                f"{source.path}: tensor {source.called(part)!r} has the shape {list(stored[part])}, its config says "
                f"{list(shape)}; convert or fetch it again"
            )
    if left := [source.called(part) for part in stored if part not in wanted]:
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise UsageError(
            f"{source.path}: tensor {left[0]!r}{more} is no part of a {architecture.family} decoder as refengine "
            "computes it; leaving it out would give other numbers, so the model is not supported"
        )
