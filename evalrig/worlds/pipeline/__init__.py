"""Tickets and a deployment pipeline: builds with a stale cache, tests that must be run again, locks, stages in order, approvals."""

from functools import partial
from typing import Any

from evalrig.errands import HEX, REPORT, RULES, Act, Composed, Draw, Maker, Part, move
from evalrig.world import Move, State
from evalrig.worlds.pipeline.acts import ACTS, PEOPLE, STAGES, known_as

SERVICES = ("audit", "auth", "billing", "cart", "geo", "ledger", "mail", "media", "price", "quota", "search")
NOTES = ("customer was told", "seen again on two hosts", "waits for the vendor")
TITLES = ("Memory grows overnight", "Timeout on login", "Totals differ by one", "Wrong unit in the export")


def _ticket(draw: Draw, state: State, service: str = "", title: str = TITLES[0], **fields: Any) -> str:
    """A ticket beside one of the same service whose id differs in one digit and whose title is another."""
    name = f"T-{draw.code(10)}"
    near = {"service": service, "title": TITLES[TITLES.index(title) - 1], "status": "open", "priority": "normal"}
    near |= {"assignee": "", "labels": [], "comments": [], "blocked_by": []}
    state["tickets"][name] = {**near, "title": title, "labels": [], "comments": [], "blocked_by": [], **fields}
    state["tickets"][draw.sibling(name)] = near
    return name


def _service(draw: Draw, state: State, stages: tuple[str, ...] = STAGES, needs: tuple[str, ...] = ()) -> str:
    """A service whose head is not built yet."""
    name, head = f"{draw.pick(SERVICES)}-{draw.code(5)}", draw.code(16, HEX)
    previous = draw.sibling(head, HEX)
    state["services"][name] = {"head": head, "previous": previous, "suite": f"suite-{draw.code(6)}"}
    state["services"][name] |= {"approver": draw.pick(PEOPLE), "stages": list(stages), "needs": list(needs)}
    running = known_as("b", name, previous)
    state["builds"][running] = {"service": name, "commit": previous, "tested": True}
    state["stages"][name] = {stage: {"build": running, "earlier": []} for stage in stages}
    return name


def _prioritising(draw: Draw, state: State) -> Part:
    ticket, priority = _ticket(draw, state), draw.pick(("low", "high", "urgent"))
    return Part(
        text=f"Set the priority of ticket {ticket} to {priority}.",
        blank=f"Change the priority of ticket {ticket} to what the customer asked for on the phone.",
        moves=(move("update_ticket", ticket=ticket, changes={"priority": priority}),),
        lost=("update_ticket",),
        tags=("ids", "nested"),
    )


def _commenting(draw: Draw, state: State) -> Part:
    ticket, note = _ticket(draw, state), f"{draw.pick(NOTES)}, case {draw.code(8)}"
    return Part(
        text=f"Add to ticket {ticket} the comment `{note}`.",
        blank=f"Add to ticket {ticket} the comment that the customer dictated to me.",
        moves=(move("comment_ticket", ticket=ticket, text=note),),
        lost=("comment_ticket",),
        tags=("ids",),
    )


def _closing(draw: Draw, state: State) -> Part:
    service, title, status = _service(draw, state), draw.pick(TITLES), draw.pick(("fixed", "rejected"))
    ticket, person = _ticket(draw, state, service, title), draw.pick(PEOPLE)
    ask = f"Set the ticket `{title}` of service {service}"
    return Part(
        text=f"{ask} to {status} and assign it to {person}.",
        blank=f"{ask} to {status} and assign it to the one who called me.",
        moves=(
            move("find_tickets", service=service),
            move("update_ticket", ticket=ticket, changes={"status": status, "assignee": person}),
        ),
        lost=("update_ticket",),
        tags=("ids", "nested"),
    )


def _blocking(draw: Draw, state: State) -> Part:
    service, ticket, label = _service(draw, state), _ticket(draw, state), f"wave-{draw.code(4)}"
    both = [_ticket(draw, state, service, title, labels=[label]) for title in draw.shuffled(TITLES)[:2]]
    return Part(
        text=f"Mark ticket {ticket} as blocked by both tickets of service {service} with the label {label}.",
        blank=f"Mark ticket {ticket} as blocked by two other tickets, those I have in mind.",
        moves=(
            move("find_tickets", service=service, label=label),
            move("link_tickets", links=[{"ticket": ticket, "blocked_by": other} for other in sorted(both)]),
        ),
        lost=("link_tickets",),
        tags=("ids", "nested"),
    )


def _going_back(draw: Draw, state: State) -> Part:
    service, title, stage = _service(draw, state), draw.pick(TITLES), draw.pick(STAGES)
    good = f"b-{draw.code(12, HEX)}"
    bad = draw.sibling(good, HEX)
    for build in (good, bad):
        state["builds"][build] = {"service": service, "commit": draw.code(16, HEX), "tested": True}
    state["stages"][service][stage]["earlier"] = sorted((good, bad))
    ticket = _ticket(draw, state, service, title, comments=[f"bad: {bad}", f"good: {good}"])
    ask = f"The ticket `{title}` of service {service} calls a build good. Put that build back on"
    return Part(
        text=f"{ask} {stage}.",
        blank=f"{ask} the stage that I named in the meeting.",
        moves=(
            move("find_tickets", service=service),
            move("get_ticket", ticket=ticket),
            move("redeploy_build", build=good, target={"stage": stage}),
        ),
        lost=("redeploy_build",),
        tags=("ids", "nested"),
    )


def _building(flaws: tuple[str, ...], draw: Draw, state: State) -> Part:
    service = _flawed(draw, state, flaws)
    return Part(
        text=f"Build the head commit of service {service}. Do not test or deploy it.",
        blank="Build the head commit of the service that I will name later. Do not test or deploy it.",
        moves=(move("get_service", service=service), *_built(state, service)),
        lost=("start_build",),
        tags=("ids", "recovery") if flaws else ("ids",),
    )


def _flawed(draw: Draw, state: State, flaws: tuple[str, ...], needs: tuple[str, ...] = ()) -> str:
    """A service whose release takes 6 calls, one more for `canary`, `lost` and `spare`, two for `cache` and `lock`."""
    stages = STAGES if "canary" in flaws else (STAGES[0], STAGES[2])
    service = _service(draw, state, stages, needs)
    if "cache" in flaws:
        state["stale"][service] = f"cache-{draw.code(12, HEX)}"
    if "lost" in flaws:
        why = "the machine went away before the end: run the tests again"
        state["busy"][f"run_tests {known_as('b', service, state['services'][service]['head'])}"] = why
    if "spare" in flaws:
        state["spare"][service] = f"m-{draw.code(7)}"
    if "lock" in flaws:
        state["locks"][f"lock-{draw.code(9)}"] = {"service": service, "stage": draw.pick(stages)}
    return service


def _built(state: State, service: str) -> list[Move]:
    start = move("start_build", service=service, commit=state["services"][service]["head"])
    cache = state["stale"].get(service)
    return [start, move("clear_cache", cache=cache), start] if cache else [start]


def _released(state: State, service: str) -> list[Move]:
    """The way from nothing but the service's name."""
    facts = state["services"][service]
    build = known_as("b", service, facts["head"])
    way = [move("get_service", service=service), *(step for need in facts["needs"] for step in _released(state, need))]
    tests = move("run_tests", build=build, suite=facts["suite"])
    way += [*_built(state, service), tests]
    if spare := state["spare"].get(service):
        way.append(move("run_tests", build=build, suite=facts["suite"], machine=spare))
    elif f"run_tests {build}" in state["busy"]:
        way.append(tests)
    for stage in facts["stages"]:
        target = {"stage": stage}
        if stage == "production":
            way.append(move("request_approval", build=build, approver=facts["approver"]))
            target["approval"] = known_as("ap", build, facts["approver"])
        deploy = move("deploy_build", build=build, target=target)
        locks = [lock for lock, held in state["locks"].items() if held == {"service": service, "stage": stage}]
        way += [step for lock in locks for step in (deploy, move("release_lock", lock=lock))]
        way.append(deploy)
    return way


def _releasing(flaws: tuple[str, ...], draw: Draw, state: State) -> Part:
    return _release(state, _flawed(draw, state, flaws), recovery=flaws not in {(), ("canary",)})


def _releasing_both(before: tuple[str, ...], flaws: tuple[str, ...], draw: Draw, state: State) -> Part:
    needed = _flawed(draw, state, before)
    return _release(state, _flawed(draw, state, flaws, (needed,)), recovery=True)


def _release(state: State, service: str, *, recovery: bool) -> Part:
    return Part(
        text=f"Release service {service} to production.",
        blank="Release the service to production that I told you of yesterday.",
        moves=tuple(_released(state, service)),
        lost=("deploy_build",),
        tags=("ids", "nested", "recovery") if recovery else ("ids", "nested"),
    )


class Pipeline(Composed):
    """Tickets and a deployment pipeline."""

    name = "pipeline"
    policy = f"""\
You work on tickets and releases. To release a service, unless it runs already: release what it needs, build its head \
commit, run its suite on the build, deploy to its stages in order. Production needs an approval of that build by the \
service's approver. Clear, release or restart nothing unless a tool that refused says so.
{RULES}"""
    acts = (*(Act(name=n, description=d, parameters=p, do=do) for n, d, p, do in ACTS), REPORT)
    makers = (
        Maker(kind="prioritising", cost=1, make=_prioritising),
        Maker(kind="releasing", cost=7, make=partial(_releasing, ("lost",))),
        Maker(kind="closing", cost=2, make=_closing),
        Maker(kind="going_back", cost=3, make=_going_back),
        Maker(kind="rebuilding", cost=4, make=partial(_building, ("cache",))),
        Maker(kind="commenting", cost=1, make=_commenting),
        Maker(kind="building", cost=2, make=partial(_building, ())),
        Maker(kind="blocking", cost=2, make=_blocking),
        Maker(kind="releasing", cost=6, make=partial(_releasing, ())),
        Maker(kind="releasing", cost=8, make=partial(_releasing, ("canary", "spare"))),
        Maker(kind="releasing", cost=9, make=partial(_releasing, ("lock", "lost"))),
        Maker(kind="releasing", cost=11, make=partial(_releasing, ("canary", "cache", "lock"))),
        Maker(kind="releasing_both", cost=13, make=partial(_releasing_both, (), ("spare",))),
        Maker(kind="releasing_both", cost=16, make=partial(_releasing_both, ("canary", "cache"), ("lost",))),
    )

    def empty(self) -> State:
        """`stale` caches and `spare` machines by service; `approvals`: the build of each; all else by id or name."""
        state: State = {"tickets": {}, "services": {}, "stages": {}, "builds": {}, "approvals": {}}
        return state | {"locks": {}, "stale": {}, "spare": {}, "busy": {}, "reports": {}}
