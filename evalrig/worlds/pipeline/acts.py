"""What the tools of the pipeline do to its state."""

from collections.abc import Mapping
from typing import Any

from evalrig.errands import TEXT, digest, one_of, receipt, record, several, stumble
from evalrig.world import State, ToolError

STAGES = ("staging", "canary", "production")
PEOPLE = ("a.brand", "a.brandt", "j.haddad", "l.silva", "l.sylva", "m.okafor", "n.okafor", "y.tanaka")


def _one(state: State, shelf: str, key: str) -> Any:
    if key not in state[shelf]:
        raise ToolError(f"{shelf}: there is no {key}")
    return state[shelf][key]


def known_as(kind: str, *of: str) -> str:
    """The id that something gets: the same for the same things, whatever was done before."""
    return f"{kind}-{digest(kind, *of, length=12)}"


def _find_tickets(state: State, service: str, label: str = "") -> Any:
    _one(state, "services", service)
    found = [
        {"ticket": key, "title": ticket["title"], "status": ticket["status"]}
        for key, ticket in sorted(state["tickets"].items())
        if ticket["service"] == service and label in ("", *ticket["labels"])
    ]
    return {"tickets": found}


def _get_ticket(state: State, ticket: str) -> Any:
    return _one(state, "tickets", ticket)


def _update_ticket(state: State, ticket: str, changes: Mapping[str, str]) -> Any:
    found = _one(state, "tickets", ticket)
    found.update(changes)
    return receipt("update", ticket, found)


def _comment_ticket(state: State, ticket: str, text: str) -> Any:
    _one(state, "tickets", ticket)["comments"].append(text)
    return receipt("comment", ticket, text)


def _link_tickets(state: State, links: list[dict[str, str]]) -> Any:
    for link in links:
        _one(state, "tickets", link["blocked_by"])
        _one(state, "tickets", link["ticket"])
    for link in links:
        blocked = state["tickets"][link["ticket"]]
        blocked["blocked_by"] = sorted({*blocked["blocked_by"], link["blocked_by"]})
    return receipt("link", sorted((link["ticket"], link["blocked_by"]) for link in links))


def _get_service(state: State, service: str) -> Any:
    return _one(state, "services", service)


def _start_build(state: State, service: str, commit: str) -> Any:
    if commit not in (_one(state, "services", service)["head"], state["services"][service]["previous"]):
        raise ToolError(f"{service} has no commit {commit}")
    if cache := state["stale"].get(service):
        raise ToolError(f"cache {cache} is stale: clear it, then build again")
    build = known_as("b", service, commit)
    if build in state["builds"]:
        raise ToolError(f"that commit was built before, as {build}")
    state["builds"][build] = {"service": service, "commit": commit, "tested": False}
    return {"build": build, **receipt("build", build)}


def _restart_build(state: State, build: str) -> Any:
    _one(state, "builds", build)["tested"] = False
    return receipt("restart", build)


def _run_tests(state: State, build: str, suite: str, machine: str = "") -> Any:
    service = _one(state, "builds", build)["service"]
    if suite != state["services"][service]["suite"]:
        raise ToolError(f"{service} has no suite {suite}")
    if machine != (spare := state["spare"].get(service, "")):
        raise ToolError(f"the usual machine is down; name machine {spare}" if spare else f"no machine {machine}")
    stumble(state, "run_tests", build)
    state["builds"][build]["tested"] = True
    return {"passed": True, **receipt("tests", build)}


def _clear_cache(state: State, cache: str) -> Any:
    for service, stale in state["stale"].items():
        if stale == cache:
            del state["stale"][service]
            return receipt("clear", cache)
    raise ToolError(f"no cache {cache} is stale")


def _release_lock(state: State, lock: str) -> Any:
    _one(state, "locks", lock)
    del state["locks"][lock]
    return receipt("release", lock)


def _request_approval(state: State, build: str, approver: str) -> Any:
    if not _one(state, "builds", build)["tested"]:
        raise ToolError(f"{build} is not tested")
    service = state["builds"][build]["service"]
    if approver != state["services"][service]["approver"]:
        raise ToolError(f"{approver} does not approve {service}")
    approval = known_as("ap", build, approver)
    state["approvals"][approval] = build
    return {"approval": approval, **receipt("approval", approval)}


def _deploy_build(state: State, build: str, target: Mapping[str, str]) -> Any:
    stage = target["stage"]
    service = _one(state, "builds", build)["service"]
    if not state["builds"][build]["tested"]:
        raise ToolError(f"{build} is not tested")
    stages, running = state["services"][service]["stages"], state["stages"][service]
    if stage not in stages:
        raise ToolError(f"{service} has no stage {stage}")
    for before in stages[: stages.index(stage)]:
        if running[before]["build"] != build:
            raise ToolError(f"deploy {build} to {before} first")
    _may_deploy(state, service, build, target)
    running[stage] = {"build": build, "earlier": [*running[stage]["earlier"], running[stage]["build"]]}
    return receipt("deploy", build, stage)


def _may_deploy(state: State, service: str, build: str, target: Mapping[str, str]) -> None:
    stage = target["stage"]
    for lock, held in state["locks"].items():
        if held == {"service": service, "stage": stage}:
            raise ToolError(f"lock {lock} was left behind: release it, then deploy again")
    for needed in state["services"][service]["needs"]:
        runs = state["stages"][needed]["production"]["build"]
        if state["builds"][runs]["commit"] != state["services"][needed]["head"]:
            raise ToolError(f"{service} needs the head of {needed} in production")
    if stage == "production" and state["approvals"].get(target.get("approval", "")) != build:
        raise ToolError(f"production needs an approval of {build}")


def _redeploy_build(state: State, build: str, target: Mapping[str, str]) -> Any:
    service = _one(state, "builds", build)["service"]
    running = state["stages"][service].get(target["stage"])
    if not running or build not in running["earlier"]:
        raise ToolError(f"{build} never ran on {target['stage']}")
    running["earlier"] = sorted({*running["earlier"], running["build"]} - {build})
    running["build"] = build
    return receipt("redeploy", build, target)


ACTS = (
    (
        "find_tickets",
        "List a service's tickets, if wanted only those with a label.",
        record(["label"], service=TEXT, label=TEXT),
        _find_tickets,
    ),
    ("get_ticket", "Read a ticket.", record(ticket=TEXT), _get_ticket),
    (
        "update_ticket",
        "Set fields of a ticket.",
        record(
            ticket=TEXT,
            changes=record(
                ("status", "priority", "assignee"),
                status=one_of("open", "waiting", "fixed", "rejected"),
                priority=one_of("low", "normal", "high", "urgent"),
                assignee=one_of(*PEOPLE),
            ),
        ),
        _update_ticket,
    ),
    ("comment_ticket", "Add a comment to a ticket.", record(ticket=TEXT, text=TEXT), _comment_ticket),
    (
        "link_tickets",
        "Mark tickets as blocked by others.",
        record(links=several(record(ticket=TEXT, blocked_by=TEXT))),
        _link_tickets,
    ),
    ("get_service", "Head commit, suite, approver, stages and needs.", record(service=TEXT), _get_service),
    ("start_build", "Build a commit of a service.", record(service=TEXT, commit=TEXT), _start_build),
    ("restart_build", "Throw a build's test results away.", record(build=TEXT), _restart_build),
    (
        "run_tests",
        "Run a suite on a build; on another machine if one is named.",
        record(("machine",), build=TEXT, suite=TEXT, machine=TEXT),
        _run_tests,
    ),
    ("clear_cache", "Clear a stale build cache.", record(cache=TEXT), _clear_cache),
    ("release_lock", "Release a lock on a stage.", record(lock=TEXT), _release_lock),
    (
        "request_approval",
        "Have a tested build approved for production.",
        record(build=TEXT, approver=one_of(*PEOPLE)),
        _request_approval,
    ),
    (
        "deploy_build",
        "Put a tested build on a stage.",
        record(build=TEXT, target=record(("approval",), stage=one_of(*STAGES), approval=TEXT)),
        _deploy_build,
    ),
    (
        "redeploy_build",
        "Put a build back on a stage where it ran before.",
        record(build=TEXT, target=record(stage=one_of(*STAGES))),
        _redeploy_build,
    ),
)
