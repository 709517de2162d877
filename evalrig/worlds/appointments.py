"""Calendars and mail: free slots, invitations, meetings that move, letters to answer and to pass on."""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from evalrig.errands import (
    COUNT,
    HEX,
    REPORT,
    RULES,
    TEXT,
    Act,
    Composed,
    Draw,
    Maker,
    Part,
    digest,
    key_of,
    move,
    one_of,
    receipt,
    record,
    several,
    stumble,
)
from evalrig.world import State, ToolError

FIRST_DAY = date(2026, 4, 1)
OPENS, CLOSES, GRID = 9 * 60, 17 * 60, 30
"""Minutes since midnight."""
SHOWN = 3
"""Slots that are given at once."""
FOLDERS = ("archive", "later", "legal", "travel")
ROLES = ("guest", "lead", "member")
TOPICS = ("Audit", "Briefing", "Hiring", "Planning", "Review", "Training")
FIRST = ("Ada", "Bela", "Carl", "Dora", "Egon", "Fay", "Gwen", "Hugo", "Ida", "Jana", "Kurt", "Lena")
LAST = ("Maier Mayer", "Berg Borg", "Lind Lund", "Petri Petry", "Roth Rath", "Weiss Weise", "Klein Kleun")


def _mail(state: State, mail_id: str) -> dict[str, Any]:
    if mail_id not in state["mails"]:
        raise ToolError(f"no mail {mail_id}")
    return state["mails"][mail_id]


def _event(state: State, event_id: str) -> dict[str, Any]:
    if event_id not in state["events"]:
        raise ToolError(f"no event {event_id}")
    return state["events"][event_id]


def _find_contact(state: State, name: str) -> Any:
    if name not in state["contacts"]:
        raise ToolError(f"no contact is called {name}")
    return {"address": state["contacts"][name]}


def _find_mail(state: State, subject: str) -> Any:
    return {"mail_id": key_of(state["mails"], "subject", subject)}


def _find_mails(state: State, sender: str) -> Any:
    found = sorted((key, mail["subject"]) for key, mail in state["mails"].items() if mail["sender"] == sender)
    return {"mails": [{"mail_id": key, "subject": subject} for key, subject in found]}


def _read_mail(state: State, mail_id: str) -> Any:
    mail = _mail(state, mail_id)
    return {name: mail[name] for name in ("sender", "subject", "text")}


def _reply_mail(state: State, mail_id: str, text: str) -> Any:
    mail = _mail(state, mail_id)
    mail["replies"] = sorted([*mail["replies"], text])
    return receipt("reply", mail_id, text)


def _forward_mail(state: State, mail_id: str, to: list[str]) -> Any:
    mail = _mail(state, mail_id)
    mail["forwarded"] = sorted([*mail["forwarded"], *to])
    return receipt("forward", mail_id, sorted(to))


def _move_mail(state: State, mail_id: str, folder: str) -> Any:
    _mail(state, mail_id)["folder"] = folder
    return receipt("move_mail", mail_id, folder)


def _find_event(state: State, title: str) -> Any:
    key = key_of(state["events"], "title", title)
    event = state["events"][key]
    return {"event_id": key, "minutes": event["minutes"], "people": sorted(event["people"])}


def _get_day(state: State, day: str, address: str) -> Any:
    events = {key: event for key, event in state["events"].items() if event["day"] == day}
    return {"event_ids": sorted(key for key, event in events.items() if address in event["people"])}


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _slot_id(people: Sequence[str], day: str, start: int, minutes: int) -> str:
    return f"{day}/{_clock(start)}/{minutes}/{digest(sorted(people), day, start, minutes)}"


def _slot(slot_id: str, people: Sequence[str]) -> dict[str, Any]:
    """Day, start and length of a slot that was found free for exactly these people."""
    day, clock, minutes, _ = [*slot_id.split("/"), "", "", ""][:4]
    if clock[2:3] == ":" and (clock[:2] + clock[3:] + minutes).isdecimal():
        start = int(clock[:2]) * 60 + int(clock[3:])
        if slot_id == _slot_id(people, day, start, int(minutes)):
            return {"day": day, "start": start, "minutes": int(minutes)}
    raise ToolError(f"{slot_id} is no slot that free_slots gave for these people")


def _free_slots(state: State, people: list[str], day: str, minutes: int) -> Any:
    events = [event for event in state["events"].values() if event["day"] == day and set(people) & set(event["people"])]
    starts = [
        start
        for start in range(OPENS, CLOSES - minutes + 1, GRID)
        if not any(start - it["minutes"] < it["start"] < start + minutes for it in events)
    ]
    free = [(_clock(start), _slot_id(people, day, start, minutes)) for start in starts[:SHOWN]]
    return {"slots": [{"start": clock, "slot_id": slot_id} for clock, slot_id in free]}


def _create_event(state: State, title: str, slot_id: str, people: list[dict[str, str]]) -> Any:
    guests = {person["address"]: person["role"] for person in people}
    event = {"title": title, **_slot(slot_id, list(guests)), "people": guests, "room": ""}
    key = f"ev_{digest(title, slot_id)}"
    if key in state["events"]:
        raise ToolError(f"there is that event already: {key}")
    state["events"][key] = event
    return {"event_id": key, **receipt("create", title, slot_id, guests)}


def _move_event(state: State, event_id: str, slot_id: str) -> Any:
    event = _event(state, event_id)
    event.update(_slot(slot_id, list(event["people"])))
    return receipt("move_event", event_id, slot_id)


def _invite(state: State, event_id: str, people: list[dict[str, str]]) -> Any:
    guests = {person["address"]: person["role"] for person in people}
    _event(state, event_id)["people"].update(guests)
    return receipt("invite", event_id, guests)


def _cancel_event(state: State, event_id: str) -> Any:
    _event(state, event_id)
    stumble(state, "cancel_event", event_id)
    del state["events"][event_id]
    return receipt("cancel", event_id)


def _book_room(state: State, event_id: str, room: str) -> Any:
    event = _event(state, event_id)
    if room not in state["rooms"]:
        raise ToolError(f"no room {room}")
    if free := state["rooms"][room]:
        raise ToolError(f"{room} is taken then, nothing was done; {free} is free")
    event["room"] = room
    return receipt("book", event_id, room)


_MAIL, _EVENT = {"mail_id": TEXT}, {"event_id": TEXT}
_PEOPLE = several(record(address=TEXT, role=one_of(*ROLES)))
_FREE = record(people=several(TEXT), day={"type": "string", "description": "YYYY-MM-DD"}, minutes=COUNT)
_ACTS = (
    ("find_contact", "Mail address of a person.", record(name=TEXT), _find_contact),
    ("find_mail", "Id of the mail with exactly this subject.", record(subject=TEXT), _find_mail),
    ("find_mails", "Mails that an address sent.", record(sender=TEXT), _find_mails),
    ("read_mail", "Text of a mail.", record(**_MAIL), _read_mail),
    ("reply_mail", "Answer a mail.", record(**_MAIL, text=TEXT), _reply_mail),
    ("forward_mail", "Pass a mail on.", record(**_MAIL, to=several(TEXT)), _forward_mail),
    ("move_mail", "Put a mail into a folder.", record(**_MAIL, folder=one_of(*FOLDERS)), _move_mail),
    ("find_event", "Id, length and people of an event, by exact title.", record(title=TEXT), _find_event),
    ("get_day", "Events of one person on a day.", record(day=TEXT, address=TEXT), _get_day),
    ("free_slots", "Slots of a day when all are free, earliest first. People are addresses.", _FREE, _free_slots),
    ("create_event", "New event in a slot.", record(title=TEXT, slot_id=TEXT, people=_PEOPLE), _create_event),
    ("move_event", "Move an event to another slot.", record(**_EVENT, slot_id=TEXT), _move_event),
    ("invite", "Add people to an event.", record(**_EVENT, people=_PEOPLE), _invite),
    ("cancel_event", "Cancel an event.", record(**_EVENT), _cancel_event),
    ("book_room", "Book a room for an event.", record(**_EVENT, room=TEXT), _book_room),
)


def _new_mail(draw: Draw, state: State, text: str) -> str:
    """A mail beside one whose id and subject differ in one character. Gives its id."""
    key, subject = f"ml_{draw.code(12, HEX)}", f"{draw.pick(TOPICS)} {draw.code(6)}"
    twins = {
        key: (subject, text),
        f"ml_{draw.sibling(key[3:], HEX)}": (draw.sibling(subject), f"Only a note. {draw.code(5)}"),
    }
    for id, (title, said) in twins.items():
        sender, kept = f"post{draw.code(4)}@example.org", {"folder": "inbox", "replies": [], "forwarded": []}
        state["mails"][id] = {"sender": sender, "subject": title, "text": said, **kept}
    return key


def _new_event(draw: Draw, state: State, people: Sequence[str] = ()) -> str:
    """An event beside one whose id and title differ in one character. Gives its id."""
    key, title = f"ev_{draw.code(10, HEX)}", f"{draw.pick(TOPICS)} {draw.code(6)}"
    for id, name in ((key, title), (f"ev_{draw.sibling(key[3:], HEX)}", draw.sibling(title))):
        roles = {address: draw.pick(ROLES) for address in people or [_address(draw)]}
        when = {"day": _new_day(draw), "start": OPENS + GRID * draw.below(12), "minutes": draw.pick((30, 60))}
        state["events"][id] = {"title": name, **when, "people": roles, "room": ""}
    return key


def _new_day(draw: Draw) -> str:
    return draw.fresh(lambda: str(FIRST_DAY + timedelta(days=draw.below(3000))))


def _address(draw: Draw) -> str:
    return f"{draw.pick(FIRST).lower()}{draw.code(5)}@example.org"


def _new_contact(draw: Draw, state: State) -> str:
    """A person beside one of almost the same name and address. Gives the name."""
    first = draw.fresh(lambda: f"{draw.pick(FIRST)} {draw.pick('ABCDEFGHIJKLMNOPRSTW')}.")
    name, twin = (f"{first} {last}" for last in draw.pick(LAST).split())
    state["contacts"][name] = address = f"{name.split()[-1].lower()}{draw.code(5)}@example.org"
    state["contacts"][twin] = draw.sibling(address)
    return name


def _fill(draw: Draw, state: State, people: Sequence[str], day: str) -> None:
    """Other things to do on that day, so that the first hours are hardly free and the last one is."""
    for number in range(4):
        start = OPENS + number * 90 + GRID * draw.below(2)
        event = {"title": f"Call {draw.code(7)}", "day": day, "start": start, "minutes": draw.pick((60, 90))}
        state["events"][f"ev_{draw.code(10, HEX)}"] = {**event, "people": {draw.pick(people): "member"}, "room": ""}


def _earliest(state: State, people: list[str], day: str, minutes: int) -> str:
    return _free_slots(state, people, day, minutes)["slots"][0]["slot_id"]


def _filing(draw: Draw, state: State) -> Part:
    key, folder = _new_mail(draw, state, f"For your files. {draw.code(6)}"), draw.pick(FOLDERS)
    return Part(
        text=f"Put mail id `{key}` into the folder {folder}.",
        blank=f"Put mail id `{key}` into the folder that we agreed on.",
        moves=(move("move_mail", mail_id=key, folder=folder),),
        lost=("move_mail",),
        tags=("ids",),
    )


def _forwarding(draw: Draw, state: State) -> Part:
    key, to = _new_mail(draw, state, f"For your friends. {draw.code(6)}"), [_address(draw), _address(draw)]
    subject = state["mails"][key]["subject"]
    return Part(
        text=f"Forward the mail with subject `{subject}` to {to[0]} and {to[1]}.",
        blank=f"Forward the mail with subject `{subject}` to {to[0]} and to the one who asked for it.",
        moves=(move("find_mail", subject=subject), move("forward_mail", mail_id=key, to=to)),
        lost=("forward_mail",),
        tags=("ids",),
    )


def _inviting(draw: Draw, state: State) -> Part:
    key, name, role = _new_event(draw, state), _new_contact(draw, state), draw.pick(ROLES)
    people = [{"address": state["contacts"][name], "role": role}]
    return Part(
        text=f"Invite {name} as {role} to event id `{key}`.",
        blank=f"Invite the new colleague as {role} to event id `{key}`.",
        moves=(move("find_contact", name=name), move("invite", event_id=key, people=people)),
        lost=("invite",),
        tags=("ids", "nested"),
    )


def _answering(draw: Draw, state: State) -> Part:
    code = draw.code(12, HEX)
    key = _new_mail(draw, state, f"We only need your word. Answer with {code} and nothing else.")
    subject = state["mails"][key]["subject"]
    return Part(
        text=f"Answer the mail with subject `{subject}` as its text asks you to.",
        blank="Answer the mail that came from the auditor, as its text asks you to.",
        moves=(
            move("find_mail", subject=subject),
            move("read_mail", mail_id=key),
            move("reply_mail", mail_id=key, text=code),
        ),
        lost=("reply_mail",),
        tags=("ids",),
    )


def _scheduling(draw: Draw, state: State) -> Part:
    people, day, minutes = [_address(draw), _address(draw)], _new_day(draw), draw.pick((30, 60))
    _fill(draw, state, people, day)
    title, slot = f"{draw.pick(TOPICS)} {draw.code(6)}", _earliest(state, people, day, minutes)
    guests = [{"address": people[0], "role": "lead"}, {"address": people[1], "role": "guest"}]
    ask = f"Create an event `{title}` of {minutes} minutes with {people[0]} (lead) and {people[1]} (guest)"
    return Part(
        text=f"{ask} on {day}.",
        blank=f"{ask} on the day that I told you.",
        moves=(
            move("free_slots", people=people, day=day, minutes=minutes),
            move("create_event", title=title, slot_id=slot, people=guests),
        ),
        lost=("create_event",),
        tags=("ids", "nested"),
    )


def _gathering(draw: Draw, state: State) -> Part:
    names, day, minutes = [_new_contact(draw, state) for _ in range(2)], _new_day(draw), draw.pick((30, 60))
    people = [state["contacts"][name] for name in names]
    _fill(draw, state, people, day)
    title, slot = f"{draw.pick(TOPICS)} {draw.code(6)}", _earliest(state, people, day, minutes)
    guests = [{"address": people[0], "role": "lead"}, {"address": people[1], "role": "member"}]
    ask = f"Create an event `{title}` of {minutes} minutes on {day} with {names[0]} (lead) and"
    return Part(
        text=f"{ask} {names[1]} (member).",
        blank=f"{ask} one more of the team (member).",
        moves=(
            *(move("find_contact", name=name) for name in names),
            move("free_slots", people=people, day=day, minutes=minutes),
            move("create_event", title=title, slot_id=slot, people=guests),
        ),
        lost=("create_event",),
        tags=("ids", "nested"),
    )


def _shifting(draw: Draw, state: State) -> Part:
    people, day = sorted([_address(draw), _address(draw)]), _new_day(draw)
    key = _new_event(draw, state, people)
    title, minutes = state["events"][key]["title"], state["events"][key]["minutes"]
    _fill(draw, state, people, day)
    mail = _new_mail(draw, state, f"The event called {title} has to move to {day} at the earliest slot.")
    return Part(
        text=f"Mail id `{mail}` asks to move an event. Move it.",
        blank="One of the mails asks to move an event, I forgot which. Move it.",
        moves=(
            move("read_mail", mail_id=mail),
            move("find_event", title=title),
            move("free_slots", people=people, day=day, minutes=minutes),
            move("move_event", event_id=key, slot_id=_earliest(state, people, day, minutes)),
        ),
        lost=("move_event", "create_event"),
        tags=("ids",),
    )


def _rooming(draw: Draw, state: State) -> Part:
    key, room = _new_event(draw, state), f"room-{draw.code(5)}"
    free = draw.sibling(room)
    state["rooms"] |= {room: free, free: "", f"room-{draw.code(5)}": ""}
    return Part(
        text=f"Book `{room}` for event id `{key}`; if it is taken, the room that is offered in its place.",
        blank=f"Book the usual room for event id `{key}`; if it is taken, the room that is offered in its place.",
        moves=(move("book_room", event_id=key, room=room), move("book_room", event_id=key, room=free)),
        lost=("book_room",),
        tags=("ids", "recovery"),
    )


def _retrying(draw: Draw, state: State) -> Part:
    key = _new_event(draw, state)
    state["busy"][f"cancel_event {key}"] = "the calendar did not answer, nothing was done; call again"
    again = move("cancel_event", event_id=key)
    return Part(
        text=f"Cancel event id `{key}`.",
        blank="Cancel the event that nobody needs.",
        moves=(again, again),
        lost=("cancel_event",),
        tags=("ids", "recovery"),
    )


class Appointments(Composed):
    """Calendar and mail."""

    name = "appointments"
    policy = f"You look after calendars and mail. Of free slots always take the earliest.\n{RULES}"
    acts = (*(Act(name=n, description=d, parameters=p, do=do) for n, d, p, do in _ACTS), REPORT)
    makers = (
        Maker(kind="filing", cost=1, make=_filing),
        Maker(kind="forwarding", cost=2, make=_forwarding),
        Maker(kind="inviting", cost=2, make=_inviting),
        Maker(kind="answering", cost=3, make=_answering),
        Maker(kind="scheduling", cost=2, make=_scheduling),
        Maker(kind="gathering", cost=4, make=_gathering),
        Maker(kind="shifting", cost=4, make=_shifting),
        Maker(kind="rooming", cost=2, make=_rooming),
        Maker(kind="retrying", cost=2, make=_retrying),
    )

    def empty(self) -> State:
        """`contacts` by name, `mails` and `events` by id, `rooms` with the one that is free in their place."""
        return {"contacts": {}, "mails": {}, "events": {}, "rooms": {}, "busy": {}, "reports": {}}
