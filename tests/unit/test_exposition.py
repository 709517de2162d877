"""The text format of `/metrics`, on what SGLang, vLLM and llama.cpp showed, and on lines that a quick reader gets wrong."""

import json
import math
from pathlib import Path

import pytest

from evalrig.exposition import Page, page

WIRE = Path(__file__).parents[1] / "contract" / "wire" / "load"


def told(engine: str, name: str = "1-metrics-busy") -> Page:
    return page("\n".join(json.loads((WIRE / engine / f"{name}.json").read_text("utf-8"))["response"]))


def test_gauges_counters_and_histograms_of_the_engines() -> None:
    sglang, vllm, llama = told("sglang"), told("vllm"), told("llamacpp")
    assert (sglang.total("sglang:num_running_reqs"), sglang.total("sglang:num_queue_reqs")) == (4, 2)
    assert (vllm.total("vllm:num_requests_running"), vllm.total("vllm:prompt_tokens_total")) == (4, 7871)
    assert (llama.total("llamacpp:requests_deferred"), llama.total("llamacpp:prompt_seconds_total")) == (2, 10.1181)
    assert vllm.histogram("vllm:request_queue_time_seconds") == (0.05603581300147198, 74)
    assert vllm.histogram("vllm:num_requests_running") is None
    assert vllm.labels("vllm:cache_config_info")["kv_cache_size_tokens"].isdigit()


def test_streamed_and_whole_requests_are_added_up() -> None:
    """SGLang tells them in lines of their own: the first alone is a part."""
    assert told("sglang").total("sglang:prompt_tokens_total") == 77 + 42
    assert told("sglang").total("sglang:prompt_tokens_total", is_streaming="true") == 42
    assert told("sglang").histogram("sglang:time_to_first_token_seconds") == (
        pytest.approx(0.23381558032178873 + 1.2720677859992975),
        11,
    )


def test_what_is_not_told_is_not_zero() -> None:
    assert math.isnan(told("sglang").total("sglang:num_retracted_requests_total"))
    assert math.isnan(told("sglang").most("sglang:no_such_usage"))
    assert told("sglang", "8-pressure-metrics").total("sglang:num_retracted_requests_total") == 3
    assert page("").samples == page("<html>404</html>\n\nnot a line\n").samples == {}


def test_ranks_of_one_replica_are_counted_once_and_replicas_are_added_up() -> None:
    lines = [
        f'run{{dp_rank="{dp}",tp_rank="{tp}",pid="{dp}{tp}"}} {3 + dp}\nuse{{dp_rank="{dp}",tp_rank="{tp}"}} 0.{dp}5'
        for dp in (0, 1)
        for tp in (0, 1, 2)
    ]
    found = page("\n".join(lines))
    assert found.total("run") == 3 + 4
    assert found.most("use") == 0.15, "the fullest pool makes requests wait, not the mean of all"


def test_buckets_cost_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines show thousands of them, and a page is read twice a second beside the load client."""
    seen: list[str] = []

    class Pattern:
        def fullmatch(self, line: str) -> None:
            seen.append(line)

    monkeypatch.setattr("evalrig.exposition._LINE", Pattern())
    page(
        '# HELP a_bucket b\na_bucket{le="1",x="{"} 9\na_created 1.7e9\na_created{x="y"} 2\na_count 3\na_bucket_size 4\n'
    )
    assert seen == ["a_count 3", "a_bucket_size 4"]


def test_labels_hold_what_would_end_a_line_or_a_label() -> None:
    found = page(
        'a{name="x} 7 \\"y\\", z=\\\\n",le="+Inf"} 1.5e3 1795972090\nb NaN\nc_bucket{le="1"} 9\nd_created 1.7e9\n'
    )
    assert found.labels("a") == {"name": 'x} 7 "y", z=\\n', "le": "+Inf"}
    assert found.total("a") == 1500
    assert math.isnan(found.total("b"))
    assert set(found.samples) == {"a", "b"}
