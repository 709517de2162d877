"""Failed starts are told from their logs, the recorded ones of both engines among them; healthy logs are not taken for failures."""

from pathlib import Path

import pytest

from evalrig.failures import classify, words

LOGS = Path(__file__).parents[1] / "contract" / "wire" / "logs"
BINDING = "Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/no-such-model'"


def recorded(name: str) -> str:
    lines = (LOGS / f"{name}.txt").read_text("utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("# "))


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("sglang/start_bad_flag", "bad flag", "error: unrecognized arguments: --no-such-flag 1"),
        ("sglang/start_bad_kv_dtype_value", "bad flag", "error: argument --kv-cache-dtype: invalid choice: 'int3'"),
        ("sglang/start_bad_model_path", "bad model path", BINDING),
        ("sglang/start_port_in_use", "port taken", "address already in use"),
        ("sglang/start_unsupported_kv_dtype", "unsupported dtype", "ValueError: CPU FP8 KV cache requires Intel AMX support."),
        ("sglang/engine_killed", "killed", "Subprocess scheduler_0 (pid=PID) crashed with exit code -9."),
        ("vllm/start_bad_flag", "bad flag", "error: unrecognized arguments: --no-such-flag"),
        ("vllm/start_bad_kv_dtype_value", "bad flag", "error: argument --kv-cache-dtype: invalid choice: 'int3'"),
        ("vllm/start_bad_model_path", "bad model path", BINDING),
        ("vllm/start_port_in_use", "port taken", "Address already in use"),
        ("vllm/start_kv_too_small", "out of memory", "ValueError: To serve at least one request with the model's max seq len"),
        ("vllm/start_unknown_tool_parser", "unknown parser", "invalid tool call parser: nope"),
        ("vllm/start_unsupported_block_size", "unsupported dtype", "RuntimeError: Worker failed with error 'No common block size"),
    ],
)  # fmt: skip
def test_recorded_failures_are_told_by_their_cause(name: str, kind: str, said: str) -> None:
    found, cause, remedy = classify(recorded(name))
    assert found == kind
    assert cause.startswith(said)
    assert remedy
    assert "\n" not in cause + remedy


@pytest.mark.parametrize(
    "name",
    ["sglang/ready_capacity_and_shutdown", "vllm/ready_capacity_and_shutdown", "vllm/start_kv_nvfp4_accepted_but_broken"],
)  # fmt: skip
def test_a_healthy_log_holds_no_known_failure(name: str) -> None:
    assert classify(recorded(name))[0] == ""


GPU = {
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.": "out of memory",
    "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.": "out of memory",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`": "out of memory",
    "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclUnhandledCudaError: Call to CUDA failed": "NCCL",
    "RuntimeError: CUDA error: no kernel image is available for execution on the device": "missing kernel",
    "ImportError: /x/ops.so: undefined symbol: _ZN3c10": "missing kernel",
    "ModuleNotFoundError: No module named 'flashinfer'": "missing kernel",
    "/usr/bin/python3: No module named sglang": "not installed",
    "ModuleNotFoundError: No module named 'vllm'": "not installed",
    "ValueError: The quantization method compressed-tensors is not supported for this GPU.": "unsupported dtype",
    "RuntimeError: FP8 KV cache and scaling factors, but model X does not support loading scaling factors.": "missing KV scales",
    "OSError: /models/x does not appear to have a file named config.json.": "bad model path",
}  # fmt: skip


@pytest.mark.parametrize("line", GPU)
def test_failures_of_gpus_are_told(line: str) -> None:
    assert classify(f"starting\n{line}\nkill_process_tree called\n")[0] == GPU[line]


def test_an_unknown_failure_is_told_by_its_first_exception_and_not_by_the_last_line() -> None:
    log = "x\n  raise ValueError(...)\nValueError: rope scaling\nRuntimeError: Engine core failed. See root cause above.\nbye"
    assert classify(log) == ("", "ValueError: rope scaling", "")
    assert classify("nothing") == ("", "", "")


def test_a_line_is_shown_without_its_prefix() -> None:
    line = "(EngineCore pid=7) ERROR 11-29 17:24:37 [core.py:1510] ValueError: x"
    assert words(line) == "ValueError: x"
