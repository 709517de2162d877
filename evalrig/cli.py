"""Arguments in, exit code out. Imports nothing heavy until a verb needs it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evalrig.errors import RunError, UsageError

EPILOG = """\
exit codes: 0 GO, 1 NO-GO, 2 usage or run file, 3 INVALID or could not run or interrupted, 4 INCONCLUSIVE,
            5 rehearsal complete (no verdict)
start here: evalrig init, then evalrig show FILE, then evalrig run FILE"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the exit code says how it ended."""
    arguments = _parser().parse_args(argv)
    try:
        return arguments.verb(arguments)
    except UsageError as error:
        _complain(error)
        return 2
    except RunError as error:
        _complain(error)
        return 3
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left: nobody to tell
        return 3
    except Exception:  # noqa: BLE001 - a bug keeps its traceback, but Python's own exit code 1 would read as NO-GO
        import traceback

        traceback.print_exc()
        return 3


def _complain(error: Exception) -> None:
    sys.stderr.write(f"evalrig: {error}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="evalrig",
        description="May a cheaper variant of a large language model be released? Measures, judges, and says how sure.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=_version())
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    file = [("file", {"metavar": "FILE", "type": Path, "help": "run file, for example conf/demo.yaml"})]
    keys = [("overrides", {"metavar": "key=value", "nargs": "*", "help": "keys of the run file to change"})]
    folder = [("folder", {"metavar": "RUN", "type": Path, "help": "run folder, as `evalrig run` printed it"})]
    other_tool = {
        "dest": "tool",
        "choices": ["vllm", "sglang", "guidellm", "aiperf"],
        "help": "write nothing; print what that load generator would have said of the run's blocks of load, beside ours",
    }
    _verb(verbs, "run", _run, "start the engines, run the suites, judge; the exit code is the verdict", file + keys)
    _verb(verbs, "rehearse", _rehearse, "go through a run file on the embedded engine with few samples", file + keys)
    _verb(verbs, "resume", _resume, "go on with a run that was killed or stopped", folder)
    _verb(verbs, "judge", _judge, "judge a run again from its records, and write the report", folder)
    _verb(
        verbs,
        "report",
        _report,
        "as judge, but exits with 0 (not of a rehearsal): write verdict and report again",
        [*folder, ("--as", other_tool)],
    )
    _verb(
        verbs,
        "show",
        _show,
        "print the composed run file, the plan and what it can decide; starts nothing",
        file + keys,
    )
    _verb(
        verbs,
        "list",
        _list,
        "kinds of engines, suites, gates, runners and sandboxes; shipped run files; fetched data",
        [],
    )
    other = {"metavar": "PYTHON", "nargs": "?", "default": "python3", "help": "of SGLang's or vLLM's environment"}
    _verb(verbs, "doctor", _doctor, "say what is here and what each lack means", [("python", other)])
    pair = [
        (
            "first",
            {"metavar": "BASE", "type": Path, "help": "of llama-perplexity's --kl-divergence-base, by the reference"},
        ),
        ("second", {"metavar": "CANDIDATE", "type": Path, "help": "another, by the candidate over the same text"}),
    ]
    _verb(verbs, "kld", _kld, "print llama-perplexity's KL table of two of its files of log-probabilities", pair)
    target = [("target", {"metavar": "DIR", "type": Path, "nargs": "?", "default": Path(), "help": "default: here"})]
    _verb(verbs, "init", _init, "copy a starter run file and a CI recipe; never overwrites", target)
    source = [
        (
            "--from",
            {"dest": "source", "metavar": "DIR", "type": Path, "help": "take the packages from a folder, no network"},
        )
    ]
    names = [("names", {"metavar": "NAME", "nargs": "*", "help": "default: everything that is not shipped"})]
    _verb(
        verbs, "fetch", _fetch, "download the models and data of the shipped suites, verified by sha256", names + source
    )
    return parser


def _verb(verbs: Any, name: str, then: Any, words: str, arguments: list[tuple[str, dict[str, Any]]]) -> None:
    verb = verbs.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".")
    for flag, settings in arguments:
        verb.add_argument(flag, **settings)
    verb.set_defaults(verb=then)


def _version() -> str:
    from importlib.metadata import version

    return f"evalrig {version('evalrig')}"


def _run(arguments: argparse.Namespace) -> int:
    from evalrig import run

    return _carry_out(lambda progress: run.run(arguments.file, arguments.overrides, progress))


def _rehearse(arguments: argparse.Namespace) -> int:
    from evalrig import run

    return _carry_out(lambda progress: run.rehearse(arguments.file, arguments.overrides, progress))


def _resume(arguments: argparse.Namespace) -> int:
    from evalrig import run

    return _carry_out(lambda progress: run.resume(arguments.folder, progress))


def _carry_out(start: Any) -> int:
    """Run to the end, or until a signal: then the engines are stopped and the records kept."""
    import asyncio
    import signal

    from evalrig.progress import for_stream
    from evalrig.report.text import ending

    async def guarded() -> Any:
        task = asyncio.ensure_future(start(for_stream()))
        loop = asyncio.get_running_loop()
        hangup = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)  # nohup means go on
        for number in (signal.SIGINT, signal.SIGTERM, *hangup):
            # once: a second signal must not cut the stopping of the engines short
            loop.add_signal_handler(number, lambda n=number: task.cancelling() or task.cancel(n.name))
        return await task

    try:
        finished = asyncio.run(guarded())
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise RunError("interrupted before a run folder was made; nothing was lost") from None
    sys.stdout.write(ending(finished.folder, finished.verdict, finished.stopped))
    return finished.verdict.exit_code


def _judge(arguments: argparse.Namespace) -> int:
    from evalrig.records import RunFolder
    from evalrig.report.text import ending
    from evalrig.run import conclude

    folder = RunFolder.open(arguments.folder)
    verdict = conclude(folder)
    sys.stdout.write(ending(folder, verdict, folder.stopped()))
    return verdict.exit_code


def _report(arguments: argparse.Namespace) -> int:
    from evalrig.records import RunFolder
    from evalrig.report import write_report
    from evalrig.verdict import judge

    folder = RunFolder.open(arguments.folder)
    if arguments.tool is not None:
        from evalrig.report.as_others import as_others

        sys.stdout.write(as_others(folder, arguments.tool))
        return 0
    verdict = judge(folder)
    write_report(folder, verdict)
    rehearsal = "REHEARSAL, no verdict; " if verdict.rehearsal else ""
    sys.stdout.write(f"{rehearsal}report: {folder.path / 'report.html'}\n")
    return verdict.exit_code if verdict.rehearsal else 0


def _show(arguments: argparse.Namespace) -> int:
    from evalrig.assemble import assemble
    from evalrig.config.load import load_run
    from evalrig.report.text import planned

    run = load_run(arguments.file, arguments.overrides)
    rig = assemble(run, arguments.file, lambda line: _tell(line), here=False)
    sys.stdout.write(planned(rig.plan, rig.text))
    if running := [name for name, suite in rig.suites.items() if suite.runs_code]:
        sys.stdout.write(f"programs of the model ({', '.join(running)}) run in: {run.sandbox}; see evalrig doctor\n")
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from evalrig.content import content_dir
    from evalrig.fetch import cards, missing
    from evalrig.plugins import kinds

    for shelf in ("engines", "suites", "gates", "runners", "sandboxes"):
        sys.stdout.write(f"{shelf}: {', '.join(kinds(shelf))}\n")
    files = sorted(path.name for path in content_dir("conf").glob("*.yaml"))
    sys.stdout.write(f"run files: {', '.join(files)}\n")
    for card in cards().values():
        state = "shipped" if card.package is None else "not fetched" if missing([card.name]) else "fetched"
        sys.stdout.write(f"{card.kind} {card.name}: {card.title} ({card.licence}; {state})\n")
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from evalrig.doctor import examine, needed, shown

    signs = examine(arguments.python)
    sys.stdout.write(shown(signs))
    return 2 if needed(signs) else 0


def _kld(arguments: argparse.Namespace) -> int:
    from evalrig.llama_cpp.kld_table import compare, table
    from evalrig.llama_cpp.logits_file import open_logits

    sys.stdout.write(table(compare(open_logits(arguments.first), open_logits(arguments.second))))
    return 0


def _init(arguments: argparse.Namespace) -> int:
    import shutil

    from evalrig.content import content_dir

    target: Path = arguments.target
    pairs = [
        (content_dir("conf") / "demo.yaml", target / "demo.yaml"),
        (content_dir("runners") / "ci.yaml", target / "evalrig-ci.yaml"),
    ]
    for _, there in pairs:
        if there.exists():
            raise UsageError(f"{there}: is there already; nothing was copied; give another folder or move it")
    try:
        target.mkdir(parents=True, exist_ok=True)
        for here, there in pairs:
            shutil.copyfile(here, there)
    except OSError as error:
        raise UsageError(f"{target}: cannot copy there: {error.strerror}; give another folder") from error
    sys.stdout.write("".join(f"{there}\n" for _, there in pairs) + f"next: evalrig show {target / 'demo.yaml'}\n")
    return 0


def _fetch(arguments: argparse.Namespace) -> int:
    from evalrig.fetch import cards, fetch

    names = arguments.names or [name for name, card in cards().items() if card.package is not None]
    fetch(names, arguments.source, lambda line: _tell(line))
    return 0


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
