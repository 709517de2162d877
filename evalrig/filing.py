"""Files attempts into the run folder: token logprobs and blocks first, the record last, so that what is recorded is whole."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from evalrig.engine import Scoring
from evalrig.plan import Cell, Plan
from evalrig.progress import Progress
from evalrig.records import AUDIT, ROWS, RunFolder
from evalrig.runner import Answered, Ended, Filing, Paper
from evalrig.suite import Attempt, LoadAttempt
from evalrig.types import Event, Record, Trace


class Files(Filing):
    """Writes to one run folder and moves the progress display."""

    def __init__(self, folder: RunFolder, progress: Progress) -> None:
        self.folder = folder
        self.progress = progress
        self._counted: set[tuple[str, str, str]] = set()
        """(variant, suite, sample) that are made again: the display holds them already."""

    def keep(self, papers: Sequence[Paper]) -> None:
        """See `Filing.keep`. At every moment what is recorded has its tokens on the disk."""
        ended = [paper for paper in papers if isinstance(paper, Ended)]
        for paper in ended:
            self._write_tokens(paper.record, paper.attempt)
        self.folder.sync_tokens()
        self.folder.append(*(paper.record for paper in ended))
        answered = [paper for paper in papers if isinstance(paper, Answered)]
        for suite in dict.fromkeys(paper.suite for paper in answered):
            self.folder.append_trace(suite, *(paper.trace for paper in answered if paper.suite == suite))
        for paper in papers:
            if isinstance(paper, Answered):
                self.progress.step(f"{paper.suite} (reference answers)")
            elif (paper.record.variant, paper.record.suite, paper.record.sample) not in self._counted:
                self.progress.step(paper.record.suite)

    def _write_tokens(self, record: Record, attempt: Attempt) -> None:
        if (rows := attempt.tokens) is not None:
            columns = {"token": rows.token_ids, "logprob": rows.logprobs}
            columns |= {"top_ids": rows.top_ids, "top_logprobs": rows.top_logprobs}
            self.folder.append_tokens(record, ROWS, columns, sync=False)
        if (rows := attempt.audit) is not None:
            columns = {"token": rows.token_ids, "vocabulary": _in_order(rows)}
            self.folder.append_tokens(record, AUDIT, columns, sync=False)

    def lay_down(self, paper: Ended) -> Ended:
        """See `Filing.lay_down`."""
        from evalrig.loadgen.raw import write_block

        record, attempt = paper.record, paper.attempt
        if not isinstance(attempt, LoadAttempt):
            return paper
        path = self.folder.load_path(record.variant, record.suite, record.sample)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_block(path, attempt.block, attempt.served)
        return Ended(
            record=record, attempt=Attempt(**{one.name: getattr(attempt, one.name) for one in fields(Attempt)})
        )

    def withdraw(self, variant: str, suite: str, samples: Collection[str]) -> None:
        """See `Filing.withdraw`."""
        self._counted |= {(variant, suite, sample) for sample in samples}
        self.folder.withdraw(variant, suite, samples)

    def failure(self, variant: str, reason: str) -> None:
        """See `Filing.failure`."""
        self.folder.set_failed(variant, reason)
        self.progress.say(f"{reason}; the other variants go on")

    def event(self, variant: str, event: Event) -> None:
        """See `Filing.event`."""
        self.folder.append_event(variant, event)

    def events(self, variant: str) -> list[Event]:
        """See `Filing.events`."""
        return self.folder.events(variant)

    def traces(self, plan: Plan) -> dict[tuple[str, str, int], Trace]:
        """What a resumed run already holds."""
        return {(s.name, t.sample, t.epoch): t for s in plan.suites if s.traced for t in self.folder.traces(s.name)}

    def answers(self, plan: Plan) -> dict[tuple[str, str, str, int], Record]:
        """Answers that a resumed run already holds and the reference may still have to score."""
        arms = {(cell.of, cell.suite) for cell in plan.cells if cell.of}
        return {(r.variant, r.suite, r.sample, r.epoch): r for arm in arms for r in self.folder.records(*arm)}

    def counts(self, plan: Plan, left: Mapping[Cell, tuple[str, ...]]) -> tuple[dict[str, int], dict[str, int]]:
        """Attempts in all and already made, by suite."""
        totals: dict[str, int] = {}
        done: dict[str, int] = {}
        for cell in plan.cells:
            name = f"{cell.suite} (reference answers)" if cell.stage == "trace" else cell.filed[1]
            totals[name] = totals.get(name, 0) + len(cell.samples)
            done[name] = done.get(name, 0) + len(cell.samples) - len(left.get(cell, ()))
        return totals, done


def _in_order(rows: Scoring) -> NDArray[np.float32]:
    """Whole-vocabulary rows by token id instead of by rank: half the bytes."""
    ordered = np.full(rows.top_logprobs.shape, -np.inf, np.float32)
    np.put_along_axis(ordered, rows.top_ids.astype(np.int64), rows.top_logprobs, axis=1)
    return ordered
