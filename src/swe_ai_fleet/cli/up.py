"""`fleet up`: runs a fleet on this machine until Ctrl-C; `fleet open`: prints the page's address."""

from __future__ import annotations

import asyncio
import html
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated

from swe_ai_fleet.cli.edge import run_command
from swe_ai_fleet.cli.findings import check_start, silent_models
from swe_ai_fleet.cli.options import Json, option
from swe_ai_fleet.cli.place import home_fleet, started_fleet
from swe_ai_fleet.cli.screen import CommandFault, Exit, Interrupts, Screen, fault_of, interrupts
from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.runtime.channels import running_fleet
from swe_ai_fleet.runtime.model_servers import model_endpoints, shown_url
from swe_ai_fleet.runtime.private_files import write_private
from swe_ai_fleet.runtime.vllm_command import VLLMOrder, vllm_interpreter
from swe_ai_fleet.runtime.vllm_server import vllm_served
from swe_ai_fleet.settings import Settings, without_login


def page_url(base: str, token: str) -> str:
    """The page's address; its fragment, which browsers never send, holds the token."""
    local = base.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    return f"{local}/#token={token}"


async def open_page(
    screen: Screen, settings: Settings, *, browser: Annotated[bool, option("Open it in a browser too.")] = False
) -> Exit:
    fleet = home_fleet(settings)
    if not fleet.http:
        raise CommandFault(
            "this fleet has no page", exit_code=Exit.UNAVAILABLE, hint="start it without FLEET_HTTP_LISTEN=off"
        )
    url = page_url(fleet.http, fleet.token)
    screen.result({"page": url}, url)
    if browser and not await asyncio.to_thread(_browse, url, settings):
        raise CommandFault(
            "no browser could be started", exit_code=Exit.UNAVAILABLE, hint="open the address printed above"
        )
    return Exit.ACCEPTED


def _browse(url: str, settings: Settings) -> bool:
    """Open the URL through a private file: every user of a machine can read the arguments of processes."""
    import webbrowser

    redirect = settings.home / "open.html"
    target = html.escape(url, quote=True)
    write_private(
        redirect, f'<!doctype html><meta http-equiv="refresh" content="0;url={target}"><a href="{target}">fleet</a>'
    )
    return webbrowser.open(redirect.resolve().as_uri())


def up(
    *,
    vllm: Annotated[
        str,
        option("Serve this model (a name on a hub, a directory) by vLLM, too.", metavar="MODEL"),
    ] = "",
    vllm_args: Annotated[str, option("Further arguments of vLLM, such as '--max-model-len 65536'.")] = "",
    vllm_tool_parser: Annotated[
        str, option("vLLM's parser of tool calls. Default: by the model's template or name.")
    ] = "",
    vllm_drain: Annotated[int, option("Seconds for running requests when the fleet stops.", min=0)] = 30,
    json: Json = False,
) -> None:
    order = VLLMOrder(model=vllm, arguments=vllm_args, tool_parser=vllm_tool_parser, drain_seconds=vllm_drain)
    run_command(lambda screen, settings: serve(screen, settings, order if vllm else None), json=json, log_level="")


async def serve(screen: Screen, settings: Settings, vllm: VLLMOrder | None = None) -> Exit:
    """Start NATS, Ray and the orchestrator, print their addresses, and stop them at Ctrl-C or SIGTERM.

    With an order for vLLM its server starts first and stops last, so that no agent outlives it.
    """
    running = running_fleet(settings.home)
    if running is not None:
        raise CommandFault(
            f"a fleet runs on {settings.home} already: {running.address}, process {running.pid}",
            hint="use it, stop it, or set FLEET_HOME to another directory",
        )
    await check_start(settings)
    for fault in [] if vllm else await silent_models(settings):
        screen.note(f"{fault.cause}; agents need it: {fault.mend}", style="yellow")
    if settings.log_format == "auto" and sys.stderr.isatty():
        # Agent hosts have no terminal, but their lines are printed on this one.
        settings = settings.model_copy(update={"log_format": "text"})
    with interrupts() as signals:
        async with _with_model(screen, settings, vllm) as with_model:
            await _serve(screen, with_model, signals)
    return Exit.ACCEPTED


async def _serve(screen: Screen, settings: Settings, signals: Interrupts) -> None:
    screen.note("starting NATS, Ray and the orchestrator ...")
    async with started_fleet(settings, screen) as fleet:
        # It waits for signals before the process id is published: Ray, once started, aborts at a SIGTERM.
        stopped = asyncio.create_task(signals.wait())
        await asyncio.sleep(0)
        card = settings.home / "fleet.json"
        models = [shown_url(endpoint) for endpoint in model_endpoints(settings)]
        page = page_url(fleet.http, fleet.token) if fleet.http else ""
        if screen.json:
            screen.document(
                {
                    "address": fleet.address,
                    "context": fleet.context,
                    "http": fleet.http,
                    "page": page,
                    "nats_url": without_login(fleet.nats_url),
                    "model_url": ",".join(models),
                    "card": str(card),
                    "pid": os.getpid(),
                }
            )
        else:
            screen.line(f"gRPC    {fleet.address}", style="bold")
            screen.line(f"page    {page or 'none; FLEET_HTTP_LISTEN is off'}", style="bold")
            screen.line(f"context {fleet.context}")
            screen.line(f"NATS    {without_login(fleet.nats_url)}")
            if settings.executor == "ray" and not settings.ray_address:
                screen.line("Ray     loopback, free ports")
            screen.line(f"model   {', '.join(models)}{'' if settings.model_url else ', by default'}")
            screen.line(f"tokens  {card}")
            screen.line('try     fleet run --repo . "what to do"')
            screen.note("Ctrl-C stops everything")
        await stopped
        screen.note("stopping ...")


@asynccontextmanager
async def _with_model(screen: Screen, settings: Settings, vllm: VLLMOrder | None) -> AsyncGenerator[Settings]:
    """The settings; with an order, with the address of the vLLM server started for it."""
    if vllm is None:
        yield settings
        return
    if settings.model_url:
        raise CommandFault(
            f"--vllm starts a model server, and FLEET_MODEL_URL names one: {settings.model_url}",
            hint="leave one of them out",
        )
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        try:
            serving = vllm_served(
                vllm, interpreter=vllm_interpreter(settings), log=settings.home / "vllm.log", tell=screen.note
            )
            served = await stack.enter_async_context(serving)
        except FleetError as error:
            raise fault_of(error, starting=True) from error
        yield settings.model_copy(
            update={"model_url": served.url, "model_api_key": served.api_key, "model": served.model}
        )
        screen.note(f"stopping vLLM; running requests have {vllm.drain_seconds} s ...")
