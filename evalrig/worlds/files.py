"""A tree of files and documents: to look up, move, rename, tag, write and delete, some of them locked."""

from typing import Any

from evalrig.errands import (
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
    move,
    one_of,
    receipt,
    record,
    several,
    stumble,
)
from evalrig.world import State, ToolError

TOPICS = ("budget", "harbour", "lease", "minutes", "orchard", "permit", "quarry", "survey", "tender", "voyage")
LABELS = ("draft", "final", "legal", "public", "urgent", "yearly")
PEOPLE = ("adler", "brandt", "castel", "dumont", "evers", "falk")


def _file(state: State, path: str) -> dict[str, Any]:
    if path not in state["files"]:
        raise ToolError(f"no file at {path}")
    return state["files"][path]


def _writable(state: State, tool: str, path: str) -> dict[str, Any]:
    found = _file(state, path)
    if lock := state["locks"].get(path):
        raise ToolError(f"{path} is locked, nothing was done; its lock is {lock}, unlock_file opens it")
    stumble(state, tool, path)
    return found


def _folder(state: State, folder: str) -> dict[str, Any]:
    if folder not in state["folders"]:
        raise ToolError(f"no folder {folder}")
    return state["folders"][folder]


def _free(state: State, path: str) -> None:
    if path in state["files"]:
        raise ToolError(f"there is a file at {path} already")


def _list_folder(state: State, folder: str) -> Any:
    if folder == "/":
        return {"folders": sorted(state["folders"])}
    _folder(state, folder)
    return {"files": sorted(path for path in state["files"] if path.rpartition("/")[0] == folder)}


def _find_file(state: State, name: str) -> Any:
    paths = sorted(path for path in state["files"] if path.rpartition("/")[2] == name)
    if not paths:
        raise ToolError(f"no file is called {name}")
    return {"path": paths[0]}


def _find_files(state: State, code: str) -> Any:
    return {"paths": sorted(path for path, file in state["files"].items() if code in file["text"].split())}


def _read_document(state: State, path: str) -> Any:
    return {"text": _file(state, path)["text"]}


def _read_properties(state: State, path: str) -> Any:
    return {name: value for name, value in _file(state, path).items() if name != "text"}


def _move_file(state: State, path: str, folder: str) -> Any:
    file = _writable(state, "move_file", path)
    _folder(state, folder)
    to = f"{folder}/{path.rpartition('/')[2]}"
    _free(state, to)
    state["files"][to] = file
    del state["files"][path]
    return {"path": to, **receipt("move", path, to)}


def _move_folder(state: State, folder: str, name: str) -> Any:
    _folder(state, folder)
    if name in state["folders"]:
        raise ToolError(f"there is a folder {name} already")
    state["folders"][name] = state["folders"].pop(folder)
    for path in [path for path in state["files"] if path.rpartition("/")[0] == folder]:
        state["files"][f"{name}/{path.rpartition('/')[2]}"] = state["files"].pop(path)
    return receipt("move_folder", folder, name)


def _copy_file(state: State, path: str, to: str) -> Any:
    file = _file(state, path)
    _folder(state, to.rpartition("/")[0])
    _free(state, to)
    state["files"][to] = {**file, "id": digest("copy", path, to, length=16)}
    return receipt("copy", path, to)


def _rename_file(state: State, path: str, name: str) -> Any:
    file = _writable(state, "rename_file", path)
    to = f"{path.rpartition('/')[0]}/{name}"
    if "/" in name:
        raise ToolError("a name holds no slash")
    _free(state, to)
    state["files"][to] = file
    del state["files"][path]
    return receipt("rename", path, to)


def _write_document(state: State, path: str, content: dict[str, Any]) -> Any:
    _folder(state, path.rpartition("/")[0])
    _free(state, path)
    lines = [content["title"], *(f"{line['label']}: {line['value']}" for line in content["lines"])]
    text = "\n".join(lines)
    state["files"][path] = {"id": digest("write", path, text, length=16), "text": text, "tags": [], "owner": "you"}
    return receipt("write", path, text)


def _tag_file(state: State, path: str, tags: list[str]) -> Any:
    file = _writable(state, "tag_file", path)
    file["tags"] = sorted({*file["tags"], *tags})
    return receipt("tag", path, sorted(tags))


def _tag_folder(state: State, folder: str, tags: list[str]) -> Any:
    found = _folder(state, folder)
    found["tags"] = sorted({*found["tags"], *tags})
    return receipt("tag_folder", folder, sorted(tags))


def _set_properties(state: State, path: str, properties: dict[str, Any]) -> Any:
    file = _writable(state, "set_properties", path)
    file.update(properties)
    return receipt("properties", path, properties)


def _delete_file(state: State, path: str) -> Any:
    _writable(state, "delete_file", path)
    state["bin"][path] = state["files"].pop(path)
    return receipt("delete", path)


def _unlock_file(state: State, path: str, lock: str) -> Any:
    _file(state, path)
    if state["locks"].get(path) != lock:
        raise ToolError(f"{lock} is not the lock of {path}")
    del state["locks"][path]
    return receipt("unlock", path, lock)


_REVIEW = record(by=TEXT, code=TEXT, state=one_of("open", "approved", "rejected"))
_CONTENT = record(title=TEXT, lines=several(record(label=TEXT, value=TEXT)))
_TAGS = several(one_of(*LABELS))
_ACTS = (
    ("list_folder", "Paths in a folder; of `/`: all folders.", record(folder=TEXT), _list_folder),
    ("find_file", "Path of the file with exactly this name.", record(name=TEXT), _find_file),
    ("find_files", "Paths of documents whose text holds this code.", record(code=TEXT), _find_files),
    ("read_document", "Text of a document.", record(path=TEXT), _read_document),
    ("read_properties", "Id, owner, tags and review of a file.", record(path=TEXT), _read_properties),
    ("move_file", "Move a file to another folder.", record(path=TEXT, folder=TEXT), _move_file),
    ("move_folder", "Give a folder with all in it another name.", record(folder=TEXT, name=TEXT), _move_folder),
    ("copy_file", "Copy a file to a new path.", record(path=TEXT, to=TEXT), _copy_file),
    ("rename_file", "New name for a file, same folder.", record(path=TEXT, name=TEXT), _rename_file),
    ("write_document", "Write a new document.", record(path=TEXT, content=_CONTENT), _write_document),
    ("tag_file", "Add tags to a file.", record(path=TEXT, tags=_TAGS), _tag_file),
    ("tag_folder", "Add tags to a folder.", record(folder=TEXT, tags=_TAGS), _tag_folder),
    (
        "set_properties",
        "Set properties of a file.",
        record(path=TEXT, properties=record(("owner", "review"), owner=TEXT, review=_REVIEW)),
        _set_properties,
    ),
    ("delete_file", "Put a file into the bin.", record(path=TEXT), _delete_file),
    ("unlock_file", "Open a file's lock.", record(path=TEXT, lock=TEXT), _unlock_file),
)


def _place(draw: Draw, state: State, text: str, twin: str = "") -> str:
    """A file in a folder of its own, beside one whose name differs in one digit. Gives its path."""
    folder, name = _new_folder(draw, state), f"{draw.pick(TOPICS)}-{draw.code(6)}.txt"
    for own, said in ((name, text), (draw.sibling(name), twin or f"Nothing is due here. {draw.code(8)}")):
        state["files"][f"{folder}/{own}"] = {
            "id": draw.code(16, HEX),
            "text": said,
            "tags": [],
            "owner": draw.pick(PEOPLE),
        }
    return f"{folder}/{name}"


def _new_folder(draw: Draw, state: State) -> str:
    folder = f"/{draw.pick(TOPICS)}-{draw.code(4)}"
    state["folders"][folder] = {"tags": []}
    return folder


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _tagging(draw: Draw, state: State) -> Part:
    path, tags = _place(draw, state, f"Tags are missing. {draw.code(8)}"), sorted(draw.shuffled(LABELS)[:2])
    return Part(
        text=f"Tag the file `{path}` as {' and '.join(tags)}.",
        blank=f"Tag the file `{path}` with the two tags that we agreed on.",
        moves=(move("tag_file", path=path, tags=tags),),
        lost=("tag_file",),
        tags=("ids",),
    )


def _binning(draw: Draw, state: State) -> Part:
    path = _place(draw, state, f"Pages {draw.code(3)} to {draw.code(4)}.")
    return Part(
        text=f"Put the file named `{_name(path)}` into the bin.",
        blank="Put the file into the bin whose name I left on your desk.",
        moves=(
            move("find_file", name=_name(path)),
            move("delete_file", path=path),
        ),
        lost=("delete_file",),
        tags=("ids",),
    )


def _renaming(draw: Draw, state: State) -> Part:
    code, new = draw.code(14), f"{draw.pick(TOPICS)}-{draw.code(6)}.txt"
    path = _place(draw, state, f"Contract {code} is signed.", f"Contract {draw.sibling(code)} is signed.")
    return Part(
        text=f"Rename the document that holds the code `{code}` to `{new}`.",
        blank=f"Rename the document that holds the code `{code}` to the name that the board chose.",
        moves=(
            move("find_files", code=code),
            move("rename_file", path=path, name=new),
        ),
        lost=("rename_file", "copy_file"),
        tags=("ids",),
    )


def _belonging(draw: Draw, state: State) -> Part:
    folder = _new_folder(draw, state)
    path = _place(draw, state, f"This belongs in {folder} and nowhere else.")
    return Part(
        text=f"The text of the file named `{_name(path)}` says which folder it belongs in. Move it there.",
        blank=f"Move the file named `{_name(path)}` to the folder that I told you yesterday.",
        moves=(
            move("find_file", name=_name(path)),
            move("read_document", path=path),
            move("move_file", path=path, folder=folder),
        ),
        lost=("move_file", "copy_file"),
        tags=("ids",),
    )


def _registering(draw: Draw, state: State) -> Part:
    path, folder = _place(draw, state, f"To be registered. {draw.code(8)}"), _new_folder(draw, state)
    entry, title = f"{folder}/entry-{draw.code(6)}.txt", f"Entry {draw.code(5)}"
    lines = [{"label": "id", "value": state["files"][path]["id"]}, {"label": "source", "value": path}]
    ask = f"Write a document `{entry}` titled `{title}` with two lines: `id`, the id property of the file named"
    return Part(
        text=f"{ask} `{_name(path)}`, then `source`, its full path.",
        blank=f"{ask} in my letter, then `source`, its full path.",
        moves=(
            move("find_file", name=_name(path)),
            move("read_properties", path=path),
            move("write_document", path=entry, content={"title": title, "lines": lines}),
        ),
        lost=("write_document",),
        tags=("ids", "nested"),
    )


def _unlocking(draw: Draw, state: State) -> Part:
    path, folder = _place(draw, state, f"Locked away. {draw.code(8)}"), _new_folder(draw, state)
    state["locks"][path] = lock = draw.code(12, HEX)
    again = move("move_file", path=path, folder=folder)
    return Part(
        text=f"Move `{path}` to the folder `{folder}`. If it is locked, unlock it first.",
        blank=f"Move `{path}` to the folder that the team chose. If it is locked, unlock it first.",
        moves=(again, move("unlock_file", path=path, lock=lock), again),
        lost=("move_file", "copy_file"),
        tags=("ids", "recovery"),
    )


def _retrying(draw: Draw, state: State) -> Part:
    path = _place(draw, state, f"Pages {draw.code(3)} to {draw.code(4)}.")
    state["busy"][f"delete_file {path}"] = "the store was busy, nothing was done; call again"
    again = move("delete_file", path=path)
    return Part(
        text=f"Put `{path}` into the bin.",
        blank="Put the other file into the bin, too.",
        moves=(again, again),
        lost=("delete_file",),
        tags=("recovery",),
    )


def _reviewing(draw: Draw, state: State) -> Part:
    code, by = draw.code(10, HEX), draw.pick(PEOPLE)
    path = _place(draw, state, f"Review code {code} holds for this document.")
    note = _place(draw, state, f"Under review now: {_name(path)} and nothing else.")
    review = {"by": by, "code": code, "state": "approved"}
    ask = f"The note `{note}` names a file. In that file's properties set the review: by"
    return Part(
        text=f"{ask} {by}, state approved, code as its text gives it.",
        blank=f"{ask} the one whom the board chose, state approved, code as its text gives it.",
        moves=(
            move("read_document", path=note),
            move("find_file", name=_name(path)),
            move("read_document", path=path),
            move("set_properties", path=path, properties={"review": review}),
        ),
        lost=("set_properties",),
        tags=("ids", "nested"),
    )


def _gathering(draw: Draw, state: State) -> Part:
    folder, paths = _new_folder(draw, state), [_place(draw, state, f"One of two. {draw.code(8)}") for _ in range(2)]
    note = _place(draw, state, f"They belong together: {_name(paths[0])} and {_name(paths[1])} .")
    return Part(
        text=f"The document `{note}` names two files. Move both to the folder `{folder}`.",
        blank=f"The document `{note}` names two files. Move both to the folder that the team chose.",
        moves=(
            move("read_document", path=note),
            *(move("find_file", name=_name(path)) for path in paths),
            *(move("move_file", path=path, folder=folder) for path in paths),
        ),
        lost=("move_file", "copy_file"),
        tags=("ids",),
    )


class Files(Composed):
    """File tree and documents."""

    name = "files"
    policy = f"You keep a store of files. A path is /folder/name.\n{RULES}"
    acts = (*(Act(name=n, description=d, parameters=p, do=do) for n, d, p, do in _ACTS), REPORT)
    makers = (
        Maker(kind="tagging", cost=1, make=_tagging),
        Maker(kind="binning", cost=2, make=_binning),
        Maker(kind="renaming", cost=2, make=_renaming),
        Maker(kind="belonging", cost=3, make=_belonging),
        Maker(kind="registering", cost=3, make=_registering),
        Maker(kind="unlocking", cost=3, make=_unlocking),
        Maker(kind="retrying", cost=2, make=_retrying),
        Maker(kind="reviewing", cost=4, make=_reviewing),
        Maker(kind="gathering", cost=5, make=_gathering, receipted=False),
    )

    def empty(self) -> State:
        """`files` by path, `folders` by name, `bin` by former path, `locks` by path."""
        return {"files": {}, "folders": {}, "bin": {}, "locks": {}, "busy": {}, "reports": {}}
