"""Runs code in the sandbox and reports its outcome; the fleet passes this file's text to a Python there.

Its arguments: bytes of memory, characters of the result, the code. The code's output to either stream goes to standard
output; the report, one line of JSON, goes to the original standard error. The code could forge that line, but gains
nothing that it could not do by setting `result`.
"""

from __future__ import annotations

import builtins
import json
import linecache
import os
import resource
import sys
import traceback
import types

NAME = "<code>"
ERROR_CHARS = 4000


def run(memory: int, limit: int, code: str) -> dict[str, object]:
    """Execute the code in a new module; {kind, result, error}."""
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    sys.argv = [NAME]
    linecache.cache[NAME] = (len(code), None, code.splitlines(True), NAME)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    error = ""
    try:
        exec(compile(code, NAME, "exec"), module.__dict__)  # noqa: S102 (this is what the sandbox is for)
    except SystemExit as end:
        if end.code not in (None, 0):
            error = f"the code ended with sys.exit({end.code!r})"
    except BaseException as fault:  # noqa: BLE001 (whatever it is, it is reported)
        error = traceback_of(fault)
    if "result" not in module.__dict__:
        return {"kind": "unset", "result": None, "error": error}
    return {**presented(module.__dict__["result"], limit), "error": error}


def traceback_of(fault: BaseException) -> str:
    """The traceback without the runner's own frames."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != NAME:
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(fault), fault, trace)).strip()
    except BaseException:  # noqa: BLE001 (its __str__ is the code's own)
        text = type(fault).__name__
    return text if len(text) <= ERROR_CHARS else f"{text[:1000]}\n[...]\n{text[-ERROR_CHARS + 1000 :]}"


def presented(value: object, limit: int) -> dict[str, object]:
    """The value as JSON if possible, else as its repr."""
    try:
        plain = json.loads(json.dumps(value, allow_nan=False))
        if plain == value and len(json.dumps(value)) <= limit:
            return {"kind": "json", "result": plain}
        text = repr(value)
    except BaseException:  # noqa: BLE001 (whatever the value's own methods raise)
        try:
            text = repr(value)
        except BaseException as fault:  # noqa: BLE001
            text = f"<{type(value).__name__}, whose repr raises {type(fault).__name__}>"
    if len(text) > limit:
        text = f"{text[:limit]}... [{len(text) - limit} more characters]"
    return {"kind": "repr", "result": text}


def main() -> None:
    """Run the code with the report's descriptor hidden from its streams, then write the report."""
    report = os.dup(2)
    os.dup2(1, 2)
    outcome = run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: BLE001, S112 (the code may have closed or replaced it)
            continue
    data = b"\n" + json.dumps(outcome).encode() + b"\n"
    while data:
        data = data[os.write(report, data) :]


if __name__ == "__main__":
    main()
