"""The whole program on one page: run file -> plan -> engines -> preflight -> attempts -> records -> verdict -> report.

Everything right of `records` can be done again from the run folder alone (`evalrig judge`, `evalrig report`).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evalrig.assemble import Rig, assemble
from evalrig.config.load import load_run
from evalrig.config.schema import RunConfig
from evalrig.environment import environment
from evalrig.errors import RunError, UsageError
from evalrig.evidence import Gathered
from evalrig.filing import Files
from evalrig.preflight import Gatekeeper
from evalrig.progress import Progress
from evalrig.records import RunFolder
from evalrig.rehearsal import rehearsed
from evalrig.report import write_report
from evalrig.resume import pending, refuse_if_changed, refuse_if_marked_elsewhere
from evalrig.runner import Work
from evalrig.types import Verdict
from evalrig.verdict import judge


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that ended: its folder, its verdict, and why it ended early (empty: it did not)."""

    folder: RunFolder
    verdict: Verdict
    stopped: str = ""


async def run(path: Path, overrides: Sequence[str], progress: Progress) -> Finished:
    """Run a run file from nothing."""
    return await _start(load_run(path, overrides), path, progress)


async def rehearse(path: Path, overrides: Sequence[str], progress: Progress) -> Finished:
    """Go through a run file in small, on the embedded engine: what would stop the run is found before GPUs are reserved."""
    config = load_run(path, overrides)
    small = rehearsed(config, assemble(config, path, progress.say, here=False), path)
    for line in small.rehearsal.replaced:
        progress.say(f"rehearsal: {line}")
    return await _start(small, path, progress)


async def _start(config: RunConfig, path: Path, progress: Progress) -> Finished:
    rig = assemble(config, path, progress.say)
    folder = RunFolder.create(rig.output, rig.plan, rig.text, environment(rig.sandbox), rig.samples)
    progress.say(f"run folder: {folder.path}")
    return await carry_out(rig, folder, progress)


async def resume(path: Path, progress: Progress) -> Finished:
    """Go on with a run that was killed or stopped; refuses if what it runs is no longer the same."""
    folder = RunFolder.open(path)
    rig = assemble(load_run(path / "run.yaml"), path / "run.yaml", progress.say)
    refuse_if_changed(folder, rig.plan)
    refuse_if_marked_elsewhere(folder, rig.sandbox)
    return await carry_out(rig, folder, progress)


async def carry_out(rig: Rig, folder: RunFolder, progress: Progress) -> Finished:
    """Do what is pending, then judge. What stops the run early becomes an INVALID verdict, never a lost night."""
    folder.lock()
    before, stopped = folder.stopped(), ""
    try:
        for file in folder.torn():
            progress.say(f"{file}: its end was cut by a kill; dropped")
        folder.set_stopped("ended without a word: killed, or the machine went down")  # until we know better
        await rig.runner.run(_work(rig, folder, progress))
    except asyncio.CancelledError as error:
        stopped = f"interrupted{f' by {error.args[0]}' if error.args else ''} before all attempts were made"
    except RunError as error:
        stopped = str(error)
    except UsageError:
        stopped = before
        raise
    except Exception as error:  # a bug keeps its traceback, and leaves an INVALID verdict for whoever reads the folder
        stopped = f"crashed: {type(error).__name__}: {error}"
        folder.set_stopped(stopped)
        conclude(folder)
        raise
    finally:
        if rig.booth is not None:
            rig.booth.close()  # a program may have its whole time still before it
        progress.end()
        folder.set_stopped(stopped)
        folder.close()
    return Finished(folder=folder, verdict=conclude(folder), stopped=stopped)


def conclude(folder: RunFolder) -> Verdict:
    """Judge and report from the records alone; also what `evalrig judge` does."""
    gathered = Gathered(folder)
    verdict = judge(folder, gathered)
    write_report(folder, verdict, gathered)
    return verdict


def _work(rig: Rig, folder: RunFolder, progress: Progress) -> Work:
    left = pending(folder, rig.plan)
    files = Files(folder, progress)
    progress.begin(*files.counts(rig.plan, left))
    return Work(
        plan=rig.plan,
        suites=rig.suites,
        samples={name: {sample.id: sample for sample in samples} for name, samples in rig.samples.items()},
        pending=left,
        traces=files.traces(rig.plan),
        answers=files.answers(rig.plan),
        engine=lambda variant: rig.engine(variant, folder.variant_path(variant.name) / "engine.log"),
        preflight=Gatekeeper(folder, progress).admit,
        file=files,
    )
