"""`python -m evalrig.llama_cpp.serve`: llama.cpp's HTTP server in this process, until it is killed.

The wheel holds no server program: it runs llama.cpp's C++ server inside Python. In a process of its own, its crash is not ours.
"""

import argparse
import importlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

VERBOSITY = 4
"""What llama.cpp says at 3 holds neither the KV cache's type nor its size."""


def main() -> None:
    """Serve; the port file is written, whole, once requests are taken."""
    said = _arguments()
    xllamacpp: Any = importlib.import_module("xllamacpp")
    server = xllamacpp.Server(_parameters(xllamacpp, said))
    ready = {"url": server.listening_address, "wheel": str(xllamacpp.__version__)}
    draft = said.port_file.with_suffix(".draft")
    draft.write_text(json.dumps(ready), encoding="utf-8")
    draft.replace(said.port_file)
    while True:
        signal.pause()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="evalrig.llama_cpp.serve")
    parser.add_argument("--model", required=True)
    parser.add_argument("--port-file", type=Path, required=True)
    parser.add_argument("--cache-type-k", default="f16")
    parser.add_argument("--cache-type-v", default="f16")
    parser.add_argument("--context-length", type=int, default=2048)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-flash-attn", action="store_true")
    return parser.parse_args(sys.argv[1:])


def _parameters(xllamacpp: Any, said: argparse.Namespace) -> Any:
    """Everything that bears on numbers is set, nothing is left to a default that a release may change."""
    p = xllamacpp.CommonParams()
    p.model.path, p.model_alias = said.model, {"evalrig"}
    p.hostnames, p.port = ["127.0.0.1"], 0
    p.n_parallel, p.n_ctx, p.kv_unified, p.ctx_shift = said.parallel, said.context_length * said.parallel, False, False
    p.n_batch, p.n_ubatch = 2048, 512
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = said.threads
    p.cache_type_k = _type(xllamacpp, said.cache_type_k)
    p.cache_type_v = _type(xllamacpp, said.cache_type_v)
    flash = xllamacpp.llama_flash_attn_type
    on, off = flash.LLAMA_FLASH_ATTN_TYPE_ENABLED, flash.LLAMA_FLASH_ATTN_TYPE_DISABLED
    p.flash_attn_type = off if said.no_flash_attn else on
    p.sampling.seed = said.seed
    p.fit_params = False  # would change the context to fit the memory, and loads the model twice
    p.cache_prompt, p.cache_ram_mib, p.cache_idle_slots, p.n_cache_reuse = False, 0, False, 0
    p.prefill_assistant = False  # a last message of the assistant's is a finished turn, not one to go on with
    p.use_jinja, p.ui, p.endpoint_metrics, p.verbosity = True, False, True, VERBOSITY
    return p


def _type(xllamacpp: Any, name: str) -> Any:
    found = getattr(xllamacpp.ggml_type, f"GGML_TYPE_{name.upper()}", None)
    if found is None:
        sys.exit(f"llama.cpp has no type {name!r} for the KV cache")
    return found


if __name__ == "__main__":
    main()
