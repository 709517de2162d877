"""Why an engine did not start, from its log: one line with the remedy. Exit codes say nothing (wire/INDEX.md)."""

import re
from dataclasses import dataclass

TAIL = 400_000
"""Characters of a log that are looked at: its end."""


RAISED = r"(?i:.*(error|exception): .*?)"
"""What may also stand in a harmless warning counts only where it was raised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One class of failed starts."""

    kind: str
    pattern: str
    """The first line that matches tells the cause."""
    remedy: str


FAILURES: tuple[Failure, ...] = (
    Failure(
        kind="not installed",
        pattern=r"No module named '?(sglang|vllm)\b|: not found|executable file not found",
        remedy="name a Python that has the engine in `program.python`, or the whole command in `program.command`",
    ),
    Failure(
        kind="bad flag",
        pattern=r"error: (unrecognized arguments|argument -\S+: (invalid|expected)|ambiguous option).*",
        remedy="correct or leave out that option; this version of the engine does not take it",
    ),
    Failure(
        kind="unknown parser",
        pattern=r"invalid (tool call|reasoning) parser: \S+",
        remedy="correct `parsers`; the log lists the names",
    ),
    Failure(
        kind="port taken",
        pattern=r"[Aa]ddress already in use",
        remedy="start again; another program took the port meanwhile",
    ),
    Failure(
        kind="bad model path",
        pattern=r"Repo id must be in the form.*|does not appear to have a file named.*|[Cc]annot find any model weights"
        r".*|No such file or directory: '\S*(config|tokenizer|safetensors)\S*|is not a local folder.*",
        remedy="correct `weights`: no complete checkpoint is there",
    ),
    Failure(
        kind="missing KV scales",
        pattern=r".*does not support loading scaling factors.*|.*load_kv_cache_scales.*",
        remedy="this model takes no scales file: leave out `weights_and_kv.quantization_param_path`",
    ),
    Failure(
        kind="out of memory",
        pattern=r"(torch\.)?(cuda\.)?OutOfMemoryError.*|.*(CUDA|HIP) out of memory.*|.*Not enough memory.*"
        r"|.*larger than the available KV cache memory.*|.*No available memory for the cache blocks.*"
        r"|.*less than desired GPU memory utilization.*|.*CUDA_ERROR_OUT_OF_MEMORY.*|.*oom-kill.*",
        remedy="lower `memory` (context, batch or KV share), or raise `parallel.tp`; see that no other program holds the GPUs",
    ),
    Failure(
        kind="NCCL",
        pattern=r".*(ncclUnhandledCudaError|ncclSystemError|ncclInternalError|ncclInvalidUsage|NCCL error).*"
        r"|.*Duplicate GPU detected.*|.*NCCL WARN.*",
        remedy="check `parallel` against the GPUs that are visible, and the links between them (NCCL_DEBUG=INFO in `program.env`)",
    ),
    Failure(
        kind="missing kernel",
        pattern=RAISED
        + r"(?i:no kernel image is available|undefined symbol|No module named '(sgl_kernel|flash_attn|deep_gemm|"
        r"flashinfer|flash_mla|vllm\._C)|object has no attribute '\S*(gemm|quant|scaled|mla|moe)"
        r"|static_scaled_fp8_quant\(\) expected|libcudart\S*: cannot open).*",
        remedy="this build of the engine has no kernel for this hardware and format; install the build for this GPU",
    ),
    Failure(
        kind="unsupported dtype",
        pattern=RAISED
        + r"(?i:FP8 KV cache requires|No common block size|KV[ _-]?cache.*(not supported|unsupported|requires)"
        r"|(not supported|unsupported|not implemented for).*(dtype|quantization|KV|fp8|Float8|capability)"
        r"|(dtype|quantization|fp8|nvfp4|capability).*(is|are) not supported).*",
        remedy="this hardware or attention backend cannot hold that format; change `weights_and_kv` or `numerics.attention_backend`",
    ),
    Failure(
        kind="killed",
        pattern=r"Subprocess \S+ .*crashed with exit code -9.*|^Killed$|.*exit code: -9.*",
        remedy="the system ended it, most often for want of main memory; look at the kernel's log",
    ),
)

NOISE = re.compile(
    r"Ignore import error|UserWarning|DeprecationWarning|Found ulimit of|non-default args|server_args=|root cause above"
)
"""Lines of healthy starts that look like causes, and those that only point at another."""
GENERIC = re.compile(r"(?:^|\s)((?:\w+\.)*\w*(?:Error|Exception): .+)")


def classify(log: str) -> tuple[str, str, str]:
    """Kind, the log's own words, and the remedy; ("", words, "") for a failure of no known kind."""
    lines = [line for line in re.split(r"[\r\n]+", log[-TAIL:]) if not NOISE.search(line)]
    for failure in FAILURES:
        pattern = re.compile(failure.pattern)
        for line in lines:
            if found := pattern.search(line):
                return failure.kind, words(found.group(0)), failure.remedy
    causes = [found.group(1) for line in lines if (found := GENERIC.search(line))]
    return "", words(causes[0]) if causes else "", ""


def words(line: str) -> str:
    """A line of a log without its prefix: time, process, file."""
    line = re.sub(
        r"^(\(\w+ pid=\w+\)\s*)?(INFO|WARNING|ERROR)?\s*(\d\d-\d\d \d\d:\d\d:\d\d)?\s*(\[[^\]]*\])?\s*", "", line
    )
    return line.strip()[:200]
