"""Serve a model over HTTP with the endpoints of OpenAI's API.

Ctrl-C or SIGTERM ends the server; running requests have 10 seconds to finish.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Final

from plait.cli.arguments import add_context, add_model, context_options, open_model, read_text
from plait.cli.terminal import logging_to

# Seconds until an idle connection is closed. Longer than clients keep them (5 seconds in the openai package): otherwise
# a client may send a request on a connection that is being closed.
_KEEP_ALIVE: Final = 65


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `plait serve`."""
    add_model(parser)
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        metavar="NAME",
        help="address to listen on (default 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8000,
        metavar="N",
        help="port to listen on (default 8000); 0 chooses a free one",
    )
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        default=os.environ.get("PLAIT_API_KEY"),
        help="API key that requests must contain (default: the environment variable PLAIT_API_KEY); "
        "none if it is empty",
    )
    parser.add_argument(
        "--allow-origin", metavar="ORIGIN", action="append", default=[],
        help="origin whose pages may use the server from a browser; * for all; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--chat-template", metavar="FILE", help="Jinja template to use instead of that of the model"
    )
    parser.add_argument(
        "--n-seq-max", type=int, default=32, metavar="N", help="max requests that run at a time (default 32)"
    )  # fmt: skip
    parser.add_argument(
        "--prefixes",
        metavar="DIR",
        help="directory that keeps prefixes of prompts for later runs and other processes",
    )
    parser.add_argument(
        "--mmproj", metavar="FILE", help="image encoder of the model, for messages with images"
    )
    parser.add_argument(
        "--max-image-pixels", type=int, default=1 << 25, metavar="N",
        help="images with more pixels are refused (default 33554432)",
    )  # fmt: skip
    add_context(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    import uvicorn

    from plait.errors import UnsupportedError
    from plait.generation.engine import Engine
    from plait.generation.prefix_store import PrefixStore
    from plait.server import create_app  # raises UnsupportedError without the extra
    from plait.vision import Vision

    model = open_model(args.model)
    template = None if args.chat_template is None else read_text(args.chat_template)
    store = None if args.prefixes is None else PrefixStore(args.prefixes)
    options = context_options(args)
    with contextlib.ExitStack() as opened:
        opened.enter_context(logging_to(_handler()))
        listening = opened.enter_context(_listen(args.host, args.port))
        vision = None
        if args.mmproj is not None:
            vision = Vision(
                args.mmproj,
                max_image_pixels=args.max_image_pixels,
                backend=options.get("backend", "cpu"),
                threads=options.get("threads"),
            )
            opened.callback(vision.close)
        engine: Engine | None = None
        try:
            engine = Engine(model, args.n_seq_max, store, vision=vision, **options)
            opened.callback(engine.close)
        except UnsupportedError as error:
            sys.stderr.write(f"plait serve: only embeddings are served: {error}\n")
        name = Path(args.model).stem if Path(args.model).is_file() else args.model
        app = create_app(
            model, engine, name=name, api_key=args.api_key, template=template, origins=args.allow_origin,
            n_ctx=args.n_ctx,
        )  # fmt: skip
        config = uvicorn.Config(
            app, log_level="warning", timeout_graceful_shutdown=10, timeout_keep_alive=_KEEP_ALIVE
        )
        sys.stderr.write(f"plait serve: {name} is at {_address(listening)}; Ctrl-C ends\n")
        uvicorn.Server(config).run(sockets=[listening])
    return 0


def _handler() -> logging.Handler:
    """Return a handler that writes warnings, and the tracebacks of failed requests, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("plait serve: %(levelname)s: %(message)s"))
    return handler


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address."""
    if not 0 <= port <= 65535:
        raise ValueError(f"--port is {port}; it must be 0 to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise OSError(f"{host}, port {port}: {reason}; choose another --host or --port") from None


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"
