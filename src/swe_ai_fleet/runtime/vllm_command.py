"""The command of a vLLM server: its interpreter, its arguments, the parser of its model's tool calls."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.json_values import json_object
from swe_ai_fleet.settings import Settings

MODULE = "vllm.entrypoints.openai.api_server"
INSTALL_HINT = (
    "python3 -m venv ~/vllm && ~/vllm/bin/pip install 'vllm>=0.32,<0.33', then set FLEET_VLLM_PYTHON=~/vllm/bin/python"
)
_LOOK_SECONDS = 60.0
_LOOK = """
import importlib.util, sys
from importlib.metadata import packages_distributions, version
if importlib.util.find_spec("vllm") is None:
    sys.exit(3)
names = packages_distributions().get("vllm") or ()
print(version(names[0]) if names else "unknown")
"""
# Arguments that the supervisor sets, or that other users could read in the list of processes.
_OURS = {
    "--model": "set it after --vllm",
    "--host": "the server always listens on loopback",
    "--port": "a free port is used",
    "--api-key": "it would be visible in the process list; a key is generated and passed in the environment",
    "--shutdown-timeout": "set it by --vllm-drain",
}
_MAX_TEMPLATE_BYTES = 4 * 1024 * 1024

# By a mark in the model's own chat template.
_BY_TEMPLATE = (
    ("<function=", "qwen3_coder"),
    ("<arg_key>", "glm45"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<|start|>assistant<|channel|>", "openai"),
    ("[TOOL_CALLS]", "mistral"),
    ("<|python_tag|>", "llama3_json"),
    ("<tool_call>", "hermes"),
)
# By the model's name, if its template is not on this machine yet; the first match counts.
_BY_NAME = (
    (r"qwen3?[-_.]?coder|qwen3[-_.]?[5-9]", "qwen3_coder"),
    (r"qwen|qwq|hermes|smollm3", "hermes"),
    (r"llama[-_.]?4", "llama4_pythonic"),
    (r"llama[-_.]?3", "llama3_json"),
    (r"mi[sx]tral|devstral|codestral|magistral", "mistral"),
    (r"deepseek[-_.]?v3\.2", "deepseek_v32"),
    (r"deepseek[-_.]?v3\.1", "deepseek_v31"),
    (r"deepseek[-_.]?(v3|r1)", "deepseek_v3"),
    (r"gpt[-_.]?oss", "openai"),
    (r"glm[-_.]?4\.7", "glm47"),
    (r"glm[-_.]?4\.[56]", "glm45"),
    (r"kimi[-_.]?k2", "kimi_k2"),
    (r"minimax[-_.]?m2", "minimax_m2"),
    (r"granite[-_.]?4", "granite4"),
    (r"granite[-_.]?3", "granite"),
    (r"internlm", "internlm"),
    (r"jamba", "jamba"),
    (r"xlam", "xlam"),
    (r"phi[-_.]?4[-_.]?mini", "phi4_mini_json"),
    (r"seed[-_.]?oss", "seed_oss"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VLLMOrder:
    """The model to serve, and how.

    Args:
        arguments: Further arguments of vLLM, for instance `--max-model-len 65536`, in shell syntax.
        tool_parser: The parser of the model's tool calls; empty = by the model's template or name, "none" = none.
        drain_seconds: How long running requests may take when the server is stopped.
    """

    model: str
    arguments: str = ""
    tool_parser: str = ""
    drain_seconds: int = 30


def vllm_arguments(order: VLLMOrder, *, port: int) -> tuple[str, ...]:
    """The arguments after the interpreter. Raises InvalidRequest for arguments that cannot be passed to vLLM."""
    if not order.model or order.model.startswith("-"):
        raise InvalidRequest(
            f"no model: {order.model!r}", field="vllm", hint="--vllm needs a model name or a directory"
        )
    try:
        further = shlex.split(order.arguments)
    except ValueError as error:
        raise InvalidRequest(f"malformed arguments for vLLM: {error}", field="vllm_args") from error
    for argument in further:
        name = argument.partition("=")[0].replace("_", "-")
        if name in _OURS:
            raise InvalidRequest(f"{name} cannot be passed to vLLM", field="vllm_args", hint=_OURS[name])
    given = {argument.partition("=")[0].replace("_", "-") for argument in further if argument.startswith("--")}
    parser = order.tool_parser or tool_parser(order.model)
    tools: tuple[str, ...] = ()
    if parser not in ("", "none") and "--tool-call-parser" not in given:
        tools = ("--tool-call-parser", parser)
    if (tools or "--tool-call-parser" in given) and "--enable-auto-tool-choice" not in given:
        tools = ("--enable-auto-tool-choice", *tools)
    caching = () if given & {"--enable-prefix-caching", "--no-enable-prefix-caching"} else ("--enable-prefix-caching",)
    token_details = () if "--enable-prompt-tokens-details" in given else ("--enable-prompt-tokens-details",)
    return (
        *("-m", MODULE, "--model", order.model, "--host", "127.0.0.1", "--port", str(port)),
        *("--shutdown-timeout", str(order.drain_seconds)),
        *caching,
        *token_details,
        *tools,
        *further,
    )


def vllm_environment(environment: Mapping[str, str], api_key: str) -> dict[str, str]:
    """The server's environment: ours without the fleet's secrets, and the key for its callers."""
    ours = ("FLEET_", "RAY_AUTH_", "NATS_")
    inherited = {name: value for name, value in environment.items() if not name.startswith(ours)}
    return {
        **inherited,
        "VLLM_API_KEY": api_key,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }


def tool_parser(model: str) -> str:
    """vLLM's parser for a model's tool calls; empty where neither its template nor its name is known."""
    directory = Path(model)
    if directory.is_dir() and (template := _template(directory)):
        return next((parser for mark, parser in _BY_TEMPLATE if mark in template), "")
    name = model.rstrip("/").rsplit("/", 1)[-1].lower()[:200]
    return next((parser for pattern, parser in _BY_NAME if re.search(pattern, name)), "")


def vllm_interpreter(settings: Settings) -> str:
    """The Python with vLLM: the one in the settings, else this one. Raises PreconditionFailed."""
    if settings.vllm_python is None:
        return sys.executable
    configured = str(Path(settings.vllm_python).expanduser())
    program = shutil.which(configured)
    if program is None:
        raise PreconditionFailed(
            f"no interpreter at {configured}", field="vllm_python", hint="correct FLEET_VLLM_PYTHON, or leave it out"
        )
    return str(Path(program).absolute())


async def vllm_version(interpreter: str) -> str:
    """The version of vLLM in an interpreter; empty without vLLM. Raises PreconditionFailed where it does not run."""
    try:
        process = await asyncio.create_subprocess_exec(
            interpreter,
            *("-c", _LOOK),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError as error:
        raise PreconditionFailed(f"{interpreter} does not run: {error}", field="vllm_python") from error
    try:
        async with asyncio.timeout(_LOOK_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        raise PreconditionFailed(f"{interpreter} does not answer", field="vllm_python") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode not in (0, 3):
        raise PreconditionFailed(f"{interpreter} ended with {process.returncode}", field="vllm_python")
    return output.decode("utf-8", "replace").strip()


def _template(directory: Path) -> str:
    file = directory / "chat_template.jinja"
    if file.is_file():
        return _head(file)
    # A model with several templates has a list of objects here.
    template = json_object(_head(directory / "tokenizer_config.json")).get("chat_template")
    return json.dumps(template, ensure_ascii=False) if template else ""


def _head(file: Path) -> str:
    try:
        with file.open("rb") as content:
            return content.read(_MAX_TEMPLATE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""
