"""The same model in another weight format: a GGUF file in the user's cache, made once, named by what it was made from.

    python -m evalrig.llama_cpp.requantize SOURCE TYPE TARGET

A process of its own: it takes seconds to minutes, and a run that is interrupted must not wait for it. The wheel carries
no quantiser (`llama_model_quantize` is linked out), so llama.cpp's rounding as the `gguf` package has it does the work.
The recipe is the plain one: every matrix in the format asked for, norms in F32, and for q4_0 the embedding and the head
in Q8_0, since llama.cpp's own quantiser keeps them above the rest too.
"""

import contextlib
import hashlib
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from evalrig.content import cache_dir
from evalrig.errors import EngineError

TYPES: Final = ("bf16", "q8_0", "q4_0")
BLOCK = 32
STALE_SECONDS = 3600.0
EDGES: Final = ("token_embd.weight", "output.weight")


def sha256(path: Path) -> str:
    """Digest of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def place(source: Path, kind: str) -> Path:
    """Where the file of that type lies, or will lie once made."""
    return cache_dir() / "requantized" / f"{sha256(source)}-{kind}.gguf"


def make(source: Path, kind: str, target: Path) -> None:
    """Write the file: whole or not at all, also when killed.

    Raises:
        EngineError: the source cannot be read, or there is no room.
    """
    draft = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        _write(source, draft, kind)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        text = f"cannot write {target}: {error.strerror or error}; give the cache room, or set XDG_CACHE_HOME"
        raise EngineError(f"{source}: {text}") from error
    except (ValueError, KeyError, IndexError) as error:
        raise EngineError(f"{source}: cannot be written as {kind} ({error}); restore the file") from error
    finally:
        with contextlib.suppress(OSError):  # the reason why it could not be written is the one to tell
            draft.unlink(missing_ok=True)


def _sweep(target: Path) -> None:
    """Remove what a killed process left; a younger draft may still be written."""
    for draft in target.parent.glob(f".{target.name}.*"):
        if time.time() - draft.stat().st_mtime > STALE_SECONDS:
            draft.unlink(missing_ok=True)


def tokenizer_sha256(path: Path) -> str:
    """Digest over everything in the file that decides token ids (not the chat template)."""
    from evalrig.refengine.gguf_layout import BrokenFile, read_layout

    try:
        data: Any = np.memmap(path, np.uint8, mode="r")
        metadata, _ = read_layout(data.data)
    except (BrokenFile, OSError, ValueError) as error:
        raise EngineError(f"{path}: cut short or no GGUF file ({error}); restore it") from error
    rows = {
        k: v for k, v in metadata.items() if k.startswith("tokenizer.") and not k.startswith("tokenizer.chat_templ")
    }
    return hashlib.sha256(msgspec.json.encode(sorted(rows.items()))).hexdigest()


def _write(source: Path, target: Path, kind: str) -> None:
    import gguf

    reader = gguf.GGUFReader(source)
    fields = reader.fields
    writer = gguf.GGUFWriter(target, str(fields["general.architecture"].contents()), use_temp_file=False)
    writer.add_file_type(int(getattr(gguf.LlamaFileType, f"MOSTLY_{kind.upper()}")))
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    ours = {"general.architecture", "general.file_type", "general.quantization_version"}
    for name, field in fields.items():
        if name not in ours and not name.startswith("GGUF."):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    plan = [(tensor, _type(tensor, kind, gguf)) for tensor in reader.tensors]
    for tensor, wanted in plan:
        shape = [int(n) for n in reversed(tensor.shape)]
        stored = gguf.quant_shape_to_byte_shape(shape, wanted) if wanted in _bytes(gguf) else shape
        dtype = np.dtype(np.float32) if wanted == gguf.GGMLQuantizationType.F32 else np.dtype(np.uint8)
        size = int(np.prod(stored)) * dtype.itemsize
        writer.add_tensor_info(tensor.name, stored, dtype, size, raw_dtype=None if dtype == np.float32 else wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor, wanted in plan:  # one at a time: a large model need not fit in memory
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        writer.write_tensor_data(gguf.quantize(np.ascontiguousarray(values, np.float32), wanted))
    writer.close()


def _bytes(gguf: Any) -> tuple[Any, ...]:
    kinds = gguf.GGMLQuantizationType
    return (kinds.BF16, kinds.Q8_0, kinds.Q4_0)


def _type(tensor: Any, kind: str, gguf: Any) -> Any:
    """Matrices whose rows split into blocks; the rest stays F32."""
    kinds = gguf.GGMLQuantizationType
    if len(tensor.shape) < 2 or int(tensor.shape[0]) % BLOCK:
        return kinds.F32
    if kind == "q4_0" and tensor.name in EDGES:
        return kinds.Q8_0
    return getattr(kinds, kind.upper())


def main() -> None:
    """Make one; the last line on stderr says what went wrong."""
    source, kind, target = sys.argv[1:]
    try:
        make(Path(source), kind, Path(target))
    except EngineError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
