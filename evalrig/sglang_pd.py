"""SGLang split in two: servers that prefill, servers that decode, and a router before them; one engine to the rest.

Every server is started with the same formats and read back on its own: a KV cache that is written in one dtype and
read in another answers with a straight face. Facts behind the choices: docs/engines.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evalrig.errors import EngineError, UsageError
from evalrig.launcher import Launched
from evalrig.loadgen.target import Gauges
from evalrig.programs import Program, known_flags, refuse_secrets
from evalrig.serving import together
from evalrig.sglang_wire import Client
from evalrig.started import Command, StartError, free_port

LONGEST_LIST = 128
"""Largest K through a split: above it the prefill server's scheduler raises."""
ROUTER = "sglang_router.launch_router"
ROUTER_FLAGS = frozenset({"--pd-disaggregation", "--prefill", "--decode", "--host", "--port"})
SERVER_FLAGS = frozenset(
    {
        "--disaggregation-mode",
        "--disaggregation-transfer-backend",
        "--disaggregation-bootstrap-port",
        "--disaggregation-ib-device",
        "--disaggregation-enable-kv-checksum",
        "--base-gpu-id",
    }
)
ALIKE = ("dtype", "quantization", "kv_cache_dtype", "page_size", "served_model_name", "tokenizer_path", "version")
"""Keys of `/server_info` in which servers that hand a KV cache on must agree."""


@dataclass(kw_only=True)
class Pd:
    """The split. All servers run on this machine."""

    prefill: int = 0
    """Servers that prefill; 0: no split, one server does both."""
    decode: int = 0
    """Servers that decode."""
    transfer_backend: str = "mooncake"
    """How the KV cache travels: mooncake, nixl, mori ..."""
    bootstrap_port: int = 0
    """Of the first prefill server, the next ones count on; 0: free ones."""
    ib_device: str = ""
    base_gpu_ids: list[int] = field(default_factory=list[int])
    """First GPU of each server, prefill first; default: side by side, from GPU 0 on."""
    kv_checksum: bool = False
    """Verify each transferred KV cache; a mismatch fails that request."""
    router_command: list[str] = field(default_factory=list[str])
    """In place of `python -m sglang_router.launch_router`; needed where `program.command` is given."""
    router_args: list[str] = field(default_factory=list[str])
    """Arguments of the router as they are, for instance `--mini-lb`."""


def roles(pd: Pd) -> tuple[str, ...]:
    """Prefill servers, decode servers, the router; none where there is no split."""
    if not pd.prefill:
        return ()
    prefill, decode = (f"prefill-{n}" for n in range(pd.prefill)), (f"decode-{n}" for n in range(pd.decode))
    return (*prefill, *decode, "router")


@dataclass(kw_only=True)
class Half:
    """One server of the split."""

    role: str
    mode: str
    gpu: int
    bootstrap: int = 0
    url: str = ""
    client: Client | None = None
    info: dict[str, Any] = field(default_factory=dict[str, Any])


class Split:
    """The servers and the router of one engine: what is started, and whether it is what it should be."""

    def __init__(self, engine: Launched, pd: Pd, gpus_each: int, kv_cache: Callable[[str], str]) -> None:
        self._engine = engine
        self._pd = pd
        self._kv_cache = kv_cache
        """Dtype of the KV cache that a role allocated, as its log has it."""
        servers = roles(pd)[:-1]
        gpus = pd.base_gpu_ids or [gpus_each * place for place in range(len(servers))]
        self.halves = [
            Half(role=role, mode=role.partition("-")[0], gpu=gpu) for role, gpu in zip(servers, gpus, strict=True)
        ]
        self._router: Client | None = None

    @property
    def words(self) -> str:
        """The split in short."""
        return f"{self._pd.prefill} prefill, {self._pd.decode} decode, {self._pd.transfer_backend}"

    @property
    def front(self) -> Client:
        """The first prefill server: it turns text into tokens, which the router does not."""
        return _connected(self.halves[0])

    @property
    def info(self) -> dict[str, Any]:
        """What the first decode server says of itself: its KV cache is the one that fills."""
        return next(half.info for half in self.halves if half.mode == "decode")

    async def status(self, path: str, seconds: float = 5.0) -> int:
        """HTTP status of a GET of every server; of several the first that is not 200."""
        clients = [half.client for half in self.halves] + [self._router]
        for client in clients:
            if client is not None and (found := await client.status(path, seconds)) != 200:
                return found
        return 200

    async def flush(self) -> bool:
        """Empty the prefix caches of all servers; False: one of them has not."""
        return all([await _connected(half).flush() for half in self.halves])

    async def gauges(self) -> Gauges | None:
        """Of all servers together; None: one of them tells nothing."""
        found: dict[str, list[Gauges]] = {"prefill": [], "decode": []}
        for half in self.halves:
            if (told := await _connected(half).gauges()) is None:
                return None
            found[half.mode].append(told)
        return together(found["prefill"], found["decode"])

    async def check_load(self, model: str) -> None:
        """The router passes token ids on: the one written in Rust has been seen to take texts only on this route."""
        body = {"model": model, "prompt": [1], "max_tokens": 1, "temperature": 0.0}
        reply = await self.router.posted("/v1/completions", body)
        if reply.status_code != 200:
            said = self.router.complaint(reply)
            text = f"the router takes no token ids at /v1/completions: HTTP {reply.status_code} {said}".strip()
            raise EngineError(f"{self._engine.variant.name}: {text}; try `router_args: [--mini-lb]`")

    def commands(self) -> Iterator[Command]:
        """Prefill servers, decode servers, then the router, which is told where they are."""
        for half in self.halves:
            yield self._server(half)
        self._agree()
        program: Program = self._engine.options.program
        yield Command(
            program=router_program(program, self._pd),
            module=ROUTER,
            arguments=self._router_arguments,
            environment={},
            connect=self._connect_router,
            settle=self._settle_router,
            role="router",
        )

    def _server(self, half: Half) -> Command:
        engine = self._engine

        def arguments(port: int) -> list[str]:
            return [*engine.arguments(port), *self._flags(half)]

        def connect(url: str) -> Client:
            name, launch = f"{engine.variant.name}, {half.role}", engine.launch
            half.url, half.client = url, Client(name, url, launch.request_seconds, launch.connections)
            return half.client

        async def settle() -> None:
            half.info = await self._settled(half)

        return Command(
            program=engine.options.program,
            module=engine.module,
            arguments=arguments,
            environment=engine.environment(),
            connect=connect,
            settle=settle,
            role=half.role,
        )

    def _flags(self, half: Half) -> list[str]:
        """What a server of the split has beyond the others' command line."""
        pd = self._pd
        words = ["--disaggregation-mode", half.mode, "--disaggregation-transfer-backend", pd.transfer_backend]
        if half.mode == "prefill":
            place = self.halves.index(half)
            half.bootstrap = pd.bootstrap_port + place if pd.bootstrap_port else free_port()
            words += ["--disaggregation-bootstrap-port", str(half.bootstrap)]
        words += ["--disaggregation-ib-device", pd.ib_device] if pd.ib_device else []
        words += ["--disaggregation-enable-kv-checksum"] if pd.kv_checksum else []
        return [*words, "--base-gpu-id", str(half.gpu)]

    async def _settled(self, half: Half) -> dict[str, Any]:
        name, info = f"{self._engine.variant.name}, {half.role}", await _connected(half).info("/server_info")
        if not isinstance(info, dict) or str(info.get("model_path")) != self._engine.folder:
            raise StartError(f"{name}: address already in use: another server answers there", "port taken")
        if (mode := info.get("disaggregation_mode", half.mode)) != half.mode:
            raise EngineError(f"{name}: the server runs as {mode!r}, not as {half.mode!r}")
        return dict(info)

    def _agree(self) -> None:
        """One KV cache, written by one half and read by the other: same dtypes, same pages."""
        told = [{**half.info, "KV cache": self._kv_cache(half.role)} for half in self.halves]
        for key in (*ALIKE, "KV cache"):
            said = {half.role: str(info.get(key, "")) for half, info in zip(self.halves, told, strict=True)}
            if len(set(said.values())) > 1:
                each = ", ".join(f"{role} {value or 'not told'}" for role, value in said.items())
                raise EngineError(
                    f"{self._engine.variant.name}: the servers of the split differ in {key}: {each}; "
                    "what one writes the other cannot read; give it in the run file"
                )

    def _router_arguments(self, port: int) -> list[str]:
        words = ["--pd-disaggregation"]
        for half in self.halves:
            prefill = half.mode == "prefill"
            words += ["--prefill", half.url, str(half.bootstrap)] if prefill else ["--decode", half.url]
        return [*words, "--host", "127.0.0.1", "--port", str(port), *self._pd.router_args]

    def _connect_router(self, url: str) -> Client:
        engine = self._engine
        self._router = router = Client(
            engine.variant.name, url, engine.launch.request_seconds, engine.launch.connections
        )
        router.longest_list = LONGEST_LIST
        return router

    @property
    def router(self) -> Client:
        """What requests go to."""
        if self._router is None:
            raise EngineError(f"{self._engine.variant.name}: the router was not started")
        return self._router

    async def _settle_router(self) -> None:
        """Where the router tells who stands behind it, they are ours: in equal numbers, on our ports, of our model."""
        old = await self.router.status("/get_server_info") == 200  # the mini load balancer's
        path = "/get_server_info" if old else "/server_info"
        info = await self.router.info(path) if old or await self.router.status(path) == 200 else {}
        if not isinstance(info, dict) or not {"prefill", "decode"} <= info.keys():
            return  # it tells of nobody, or of one; each server was read back itself
        for mode in ("prefill", "decode"):
            ours = sorted(_identity(half.info) for half in self.halves if half.mode == mode)
            with self.router.shape(path):
                theirs = sorted(_identity(dict(one)) for one in info[mode])
            if ours != theirs:
                name = self._engine.variant.name
                raise StartError(f"{name}, router: address already in use: it routes to other servers", "port taken")


def resolve_pd(pd: Pd, program: Program, where: str) -> None:
    """Options of the split that go together."""
    at = f"{where}.args.pd"
    if pd.prefill < 0 or pd.decode < 0 or bool(pd.prefill) != bool(pd.decode):
        raise UsageError(
            f"{at}: {pd.prefill} prefill and {pd.decode} decode servers; give at least one of each, or none"
        )
    if pd.base_gpu_ids and len(pd.base_gpu_ids) != pd.prefill + pd.decode:
        count = f"{len(pd.base_gpu_ids)} for {pd.prefill + pd.decode} servers"
        raise UsageError(f"{at}.base_gpu_ids: {count}; give the first GPU of each, or none")
    if pd.prefill and program.command and not pd.router_command:
        raise UsageError(f"{at}.router_command: needed where `program.command` is given; say how the router is started")
    refuse_secrets(pd.router_args, f"{at}.router_args")
    refuse_secrets(pd.router_command, f"{at}.router_command")
    if taken := sorted({word.partition("=")[0] for word in pd.router_args} & ROUTER_FLAGS):
        raise UsageError(f"{at}.router_args: `{taken[0]}` is set by evalrig; leave it out")


def flags_of(pd: Pd) -> set[str]:
    """Flags that the servers' program must know."""
    unused = {"--disaggregation-ib-device"} - ({"--disaggregation-ib-device"} if pd.ib_device else set[str]())
    unused |= set[str]() if pd.kv_checksum else {"--disaggregation-enable-kv-checksum"}
    return set(SERVER_FLAGS - unused) if pd.prefill else set()


def reach_router(pd: Pd, program: Program, where: str) -> None:
    """The router is here, and knows its flags.

    Raises:
        UsageError: it is not, or does not.
    """
    at = f"{where}.args.pd.router_command" if pd.router_command else f"{where}.args.program"
    known = known_flags(router_program(program, pd), "sglang-router", ROUTER, at)
    given = {word.partition("=")[0] for word in pd.router_args if word.startswith("--")}
    if unknown := sorted((given | ROUTER_FLAGS) - known):
        raise UsageError(
            f"{where}.args.pd: this router knows no flag `{unknown[0]}`; leave it out, or use another version"
        )


def router_program(program: Program, pd: Pd) -> Program:
    """The same installation, another module."""
    return Program(python=program.python, command=pd.router_command, stop_command=program.stop_command, env=program.env)


def without_ports(words: Sequence[str]) -> list[str]:
    """A server's command line as it is at every start."""
    ports = ("--port", "--disaggregation-bootstrap-port")
    return [word for before, word in zip(["", *words], words, strict=False) if not {before, word} & set(ports)]


def _identity(info: Mapping[str, Any]) -> tuple[str, str]:
    return str(info.get("model_path")), str(info.get("port"))


def _connected(half: Half) -> Client:
    if half.client is None:
        raise EngineError(f"{half.role}: the server was not started")
    return half.client
