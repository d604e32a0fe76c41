"""The MCP server behind the users' examples of section D: pools, tokens and a swap, by hand over its standard input."""

import json
import sys

NAMES = ("SHARE", "CAT", "DOG", "FROG", "OWL")
POOLS = [
    {
        "pair": f"{name}/WETH",
        "address": f"0x{number:02}",
        "liquidity_usd": 90_000 - 10_000 * number,
        "tax_percent": number,
    }
    for number, name in enumerate(NAMES)
]
NETWORK = {"type": "string"}
READS = {"readOnlyHint": True}
TOOLS = [
    {
        "name": "getNetworkPools",
        "description": "Get top liquidity pools on a network",
        "inputSchema": {
            "type": "object",
            "properties": {"network": NETWORK, "orderBy": {"type": "string"}, "limit": {"type": "integer"}},
            "required": ["network"],
        },
        "annotations": READS,
    },
    {
        "name": "getTokenDetails",
        "description": "Get what is known of a token",
        "inputSchema": {
            "type": "object",
            "properties": {"network": NETWORK, "token": {"type": "string"}},
            "required": ["token"],
        },
        "annotations": READS,
    },
    {"name": "swap", "description": "Swap tokens", "inputSchema": {"type": "object", "properties": {}}},
]


def called(name, arguments):
    if name == "getNetworkPools":
        found = {"pools": POOLS[: arguments.get("limit", 5)]}
        return {"content": [{"type": "text", "text": json.dumps(found)}], "structuredContent": found}
    if arguments["token"] == "NONE":
        return {"content": [{"type": "text", "text": "no such token"}], "isError": True}
    found = {"symbol": arguments["token"], "address": "0xaa", "chain": "base", "price_usd": 0.01}
    return {"content": [{"type": "text", "text": json.dumps(found)}]}


def answer(method, params):
    match method:
        case "initialize":
            about = {"serverInfo": {"name": "dexpaprika", "version": "1"}, "capabilities": {"tools": {}}}
            return {"protocolVersion": params["protocolVersion"], **about}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return called(params["name"], params.get("arguments") or {})
        case _:
            return {}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
