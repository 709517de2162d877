"""`python -m evalrig.loadgen.mock_server`: the mock engine as a program. It prints its port, serves on 127.0.0.1 for a bounded time,
and tells its log at `GET /log`."""

import argparse
import dataclasses
import os
import signal
import sys
from typing import Any

from evalrig.loadgen.mock import Fault, MockServer, Pace, Shape


def main(argv: list[str] | None = None) -> int:
    """Serve until the time is over or SIGTERM comes."""
    parser = argparse.ArgumentParser(prog="evalrig.loadgen.mock_server", description=__doc__)
    for noun in (Pace, Shape, Fault):
        for field in dataclasses.fields(noun):
            name = f"--{field.name.replace('_', '-')}"
            if field.type is bool:
                parser.add_argument(name, action="store_true")
            else:
                parser.add_argument(name, type=type(field.default), default=field.default)
    parser.add_argument("--seconds", type=float, default=60.0, help="serve no longer than this")
    parser.add_argument("--certificate", default="", help="file with a key and a certificate: speak TLS")
    args = parser.parse_args(argv)

    def of(noun: Any) -> Any:
        return noun(**{field.name: getattr(args, field.name) for field in dataclasses.fields(noun)})

    server = MockServer(of(Pace), of(Shape), of(Fault), args.certificate)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    try:
        server.serve(args.seconds)
    finally:
        server.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
