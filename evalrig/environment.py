"""Where a run happened: versions and machine. Never environment variables: they hold keys."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("evalrig", "numpy", "scipy", "tokenizers", "gguf", "ml_dtypes", "httpx", "pyarrow", "hydra-core")


def environment(sandbox: str = "") -> dict[str, Any]:
    """Versions of what computes, and the machine's kind. `sandbox`: where programs of the model run; empty: nowhere."""
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": {name: _version(name) for name in PACKAGES},
        **({"sandbox": sandbox} if sandbox else {}),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
