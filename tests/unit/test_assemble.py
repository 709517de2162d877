"""Laying a variant's `args` over the engine's options, and what `show` does not ask of the machine."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from toys.runs import run_file

from evalrig.assemble import assemble
from evalrig.config.load import load_run
from evalrig.errors import UsageError


def sglang_file(folder: Path, **engine: Any) -> Path:
    path = run_file(folder, {"cheap": {"weights_and_kv": {"kv_cache_dtype": "fp8_e4m3"}, "parallel": {"tp": 2}}})
    tree = yaml.safe_load(path.read_text())
    options = {"parallel": {"tp": 8, "ep": 4}, "extra": ["--trust-remote-code"], **engine}
    tree |= {"engine": {"kind": "sglang", "options": options}, "reference": {"weights": "/no/such"}}
    path.write_text(yaml.safe_dump(tree))
    return path


def test_groups_of_options_are_laid_over_one_by_one(tmp_path: Path) -> None:
    path = sglang_file(tmp_path)
    plan = assemble(load_run(path), path, lambda _: None, here=False).plan
    reference, cheap, again = (variant.options for variant in plan.variants)
    assert reference == again
    assert reference["parallel"] == {"tp": 8, "dp": None, "ep": 4, "pp": None}
    assert cheap["parallel"] == {"tp": 2, "dp": None, "ep": 4, "pp": None}
    assert (reference["weights_and_kv"]["kv_cache_dtype"], cheap["weights_and_kv"]["kv_cache_dtype"]) == (
        "bfloat16",
        "fp8_e4m3",
    )
    assert cheap["extra"] == ["--trust-remote-code"]


def test_a_plan_needs_no_checkpoint_and_no_program_and_a_run_needs_both(tmp_path: Path) -> None:
    path = sglang_file(tmp_path)
    assemble(load_run(path), path, lambda _: None, here=False)
    with pytest.raises(UsageError) as caught:
        assemble(load_run(path), path, lambda _: None)
    line = f"{path}: reference.weights: '/no/such': no such folder; give the folder of a checkpoint on this machine"
    assert str(caught.value) == line


def test_what_a_plan_can_know_is_refused_while_planning(tmp_path: Path) -> None:
    path = sglang_file(tmp_path, weights_and_kv={"kv_cache_dtype": "auto"})
    with pytest.raises(UsageError, match=r"reference\.args\.weights_and_kv\.kv_cache_dtype: `auto` is FP8 for some"):
        assemble(load_run(path), path, lambda _: None, here=False)


def test_each_option_that_moves_the_digits_and_differs_is_named_before_anything_starts(tmp_path: Path) -> None:
    """Formats are what is compared; these are not, and would be taken for their effect."""
    path = sglang_file(tmp_path, numerics={"attention_backend": "fa3"}, memory={"chunked_prefill_size": 8192})
    tree = yaml.safe_load(path.read_text())
    tree["candidates"]["cheap"]["args"] |= {"numerics": {"attention_backend": "triton", "fp32_lm_head": True}}
    tree["candidates"]["cheap"]["args"] |= {"memory": {"chunked_prefill_size": None}}
    path.write_text(yaml.safe_dump(tree))
    lines: list[str] = []
    assemble(load_run(path), path, lines.append, here=False)
    assert lines == [
        "warning: cheap: numerics.attention_backend is triton, the reference's fa3: it moves the digits too",
        "warning: cheap: numerics.fp32_lm_head is True, the reference's False: it moves the digits too",
        "warning: cheap: parallel.tp is 2, the reference's 8: it moves the digits too",
        "warning: cheap: memory.chunked_prefill_size is not set, the reference's 8192: it moves the digits too",
    ]


def test_arms_that_differ_in_formats_alone_bring_no_warning(tmp_path: Path) -> None:
    path = sglang_file(tmp_path)
    tree = yaml.safe_load(path.read_text())
    del tree["candidates"]["cheap"]["args"]["parallel"]
    path.write_text(yaml.safe_dump(tree))
    lines: list[str] = []
    assemble(load_run(path), path, lines.append, here=False)
    assert lines == []


def test_a_leg_that_a_variant_s_engine_has_not_is_refused_while_planning(tmp_path: Path) -> None:
    path = sglang_file(tmp_path, numerics={"disable_radix_cache": True})
    tree = yaml.safe_load(path.read_text())
    tree["suites"]["kl"]["options"]["leg"] = "cached_prefix"
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(
        UsageError, match=r"suites\.kl: engine `sglang` cannot give scoring over a cached prefix; leave the suite out"
    ):
        assemble(load_run(path), path, lambda _: None, here=False)
