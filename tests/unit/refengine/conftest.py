"""The model, loaded once a session, and an engine over it for the tests that go through HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from threadpoolctl import threadpool_limits

from evalrig.content import cache_dir
from evalrig.refengine.engine import Engine, Settings, start_engine
from evalrig.refengine.model import Model
from evalrig.refengine.server import create_app
from evalrig.refengine.source import Source
from evalrig.refengine.tokenizer import Tokenizer

DATA = Path(__file__).parent / "data"
CONTEXT = 2048
"""The recorded server's context length: its error messages name it."""


@pytest.fixture(scope="session")
def model_path() -> Path:
    path = cache_dir() / "models" / "smollm2-135m-instruct" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.is_file():
        pytest.fail(f"{path} is missing: run `evalrig fetch` before the tests", pytrace=False)
    return path


@pytest.fixture(scope="session")
def engine(model_path: Path) -> Iterator[Engine]:
    """BF16 weights and an F32 cache of 4096 tokens."""
    with threadpool_limits(1):
        started = start_engine(
            Settings(model=model_path, kv_cache="f32", pool_bytes=4096 * 46080, context=CONTEXT, max_running=16)
        )
        yield started
        started.scheduler.stop(10)


@pytest.fixture(scope="session")
def source(engine: Engine) -> Source:
    return engine.source


@pytest.fixture(scope="session")
def model(engine: Engine) -> Model:
    return engine.model


@pytest.fixture(scope="session")
def tokenizer(engine: Engine) -> Tokenizer:
    return engine.tokenizer


@pytest.fixture(scope="session")
def client(engine: Engine) -> Iterator[TestClient]:
    with TestClient(create_app(engine), raise_server_exceptions=True) as opened:
        yield opened
