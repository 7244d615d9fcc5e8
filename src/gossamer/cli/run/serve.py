# SPDX-License-Identifier: Apache-2.0
"""`gossamer run serve`: a model behind HTTP."""

from pathlib import Path
from typing import Any

from click import FloatRange, IntRange, argument, option

from gossamer import settings
from gossamer.cli.options import (
    PATH,
    POSITIVE,
    attention_option,
    kv_option,
    pooling_option,
    precision_option,
    prompt_option,
    threads_option,
)
from gossamer.cli.shell import Output, gossamer_command
from gossamer.errors import InputError, ResourceError

_EXAMPLES = """
gossamer run serve pruned/
gossamer run serve minilm --port 9000 --precision int8 --threads 2
gossamer run serve demo:smollm2 --max-queue 32 --timeout 120
gossamer run serve small/ --compare minilm --sentences sentences.txt
gossamer run serve demo:smollm2 --context 8192 --kv int8 --attention mass:0.9+pages:1024
"""


@gossamer_command("Answer over HTTP; also as OpenAI does.", _EXAMPLES)
@argument("model")
@option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on; others than the loopback are open to the network.",
)
@option(
    "--port",
    type=IntRange(0, 65535),
    default=8000,
    help="0 takes a free one.",
)
@option(
    "--max-queue",
    type=POSITIVE,
    default=256,
    help="Requests that may wait; others get 503.",
)
@option(
    "--max-batch-tokens",
    type=POSITIVE,
    default=4096,
    help="Tokens of one call of the model.",
)
@option(
    "--timeout",
    "timeout_seconds",
    type=FloatRange(min=0, min_open=True, max=86400),
    default=60.0,
    help="Seconds for a request and its answer, or for the next token of a text.",
)
@option(
    "--allow-host",
    "allow_hosts",
    metavar="NAME",
    multiple=True,
    help="Answer to this name, too, as a proxy may send it; repeat for more.",
)
@option(
    "--api-key",
    metavar="KEY",
    help="What clients must send.  [default: GOSSAMER_API_KEY, which others cannot see in ps]",
)
@option("--compare", metavar="DENSE", help="A page /compare with this model beside MODEL.")
@option("--sentences", type=PATH, help="What that page searches in: a file of texts.")
@precision_option
@kv_option
@attention_option
@option("--context", type=POSITIVE, help="Most tokens of prompt and answer, of a text model.")
@pooling_option
@prompt_option
@threads_option
def serve(
    out: Output,
    /,
    model: str,
    host: str,
    port: int,
    allow_hosts: tuple[str, ...],
    api_key: str | None,
    compare: str | None,
    sentences: Path | None,
    **asked: Any,
) -> None:
    """Answer /embed, /classify, /v1/embeddings, /v1/completions, /v1/chat/completions or /v1/score.

    Which of them depends on MODEL: a gossamer artifact, a local Hugging Face directory, a gguf file
    or a packaged model such as minilm. /health, /metrics and /v1/models are always there. Stops on
    Ctrl-C or SIGTERM when the requests that run are finished. --compare adds a page where the same
    text is given to both models, with times, bytes and answers side by side.
    """
    if sentences is not None and compare is None:
        raise InputError("--sentences: are for the page of --compare; give that, too.")
    from importlib.util import find_spec

    for name in ("fastapi", "uvicorn", "prometheus_client"):
        if find_spec(name) is None:
            raise ResourceError(
                f"{name} is not installed. Install the extra [serve]: pip install"
                " 'gossamer[serve]'."
            )

    from gossamer.cli.models import check_source, load_source
    from gossamer.data.files import read_samples
    from gossamer.patterns.attention.key_rules import parse_key_rules
    from gossamer.running.server import Access, Beside, Limits, build_app, make_service, run_server
    from gossamer.running.server.lifecycle import is_loopback, open_socket, url_of

    keys = parse_key_rules(asked.pop("attention"), asked.pop("kv"))
    served = {name: asked.pop(name) for name in ("precision", "pooling", "prompt", "context")}
    limits = Limits(**asked)
    key = settings.api_key() if api_key is None else api_key
    # Behind an address of the network stand names that nobody here knows.
    hosts = (host, *allow_hosts) if allow_hosts or is_loopback(host) else None
    access = Access(hosts, key)
    if compare is not None:
        check_source(compare)
    texts = () if sentences is None else read_samples(sentences).texts
    with open_socket(host, port) as listener:
        url = url_of(listener)
        with out.stage("loading"):
            source = load_source(model, say=out.note)
        with out.stage("choosing kernels"):
            service = make_service(source.model, source.beside, source.name, keys=keys, **served)
            beside = None
            if compare is not None:
                other = load_source(compare, say=out.note)
                dense = make_service(other.model, other.beside, other.name, keys=keys, **served)
                sizes, precision = (other.disk_bytes, source.disk_bytes), served["precision"]
                beside = Beside(dense, sizes, (precision, precision), texts)
        if key is None and not is_loopback(host):
            out.note(
                f"warning: {host} can be reached from other machines, and no key is asked for:"
                " whoever reaches this port can use the model. Set GOSSAMER_API_KEY."
            )
        run_server(
            build_app(service, limits, access, beside),
            listener,
            limits,
            lambda: out.note(f"serving {service.name} on {url}{'/compare' if compare else ''}"),
        )
    out.result({"model": service.name, "url": url})
