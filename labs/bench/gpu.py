"""What a GPU needs to read a prompt, to read on behind a cached one, and to write: `python labs/bench/gpu.py`.

Needs PyTorch and one GPU, nothing of the fleet and no weights: a decoder of the shape of an 8B model (Qwen3-8B's
numbers) with random weights does the same work as a trained one. It prints JSON. The figures are those of plain PyTorch
with CUDA graphs; a served engine has better kernels, and a scheduler that costs something. `kv_cache.Engine` and the
prices in `labs.tokens.masking` come from here.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch
from torch.nn import functional

LAYERS, WIDTH, HEADS, KV_HEADS, HEAD, INNER, WORDS = 36, 4096, 32, 8, 128, 12288, 151936
DEVICE, KIND = "cuda", torch.bfloat16


def _weights(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=KIND) * 0.02


class Decoder:
    """A decoder whose keys and values of `rooms` conversations of at most `room` tokens lie in one tensor."""

    def __init__(self) -> None:
        qkv = (HEADS + 2 * KV_HEADS) * HEAD
        self.layers = [
            (_weights(qkv, WIDTH), _weights(WIDTH, HEADS * HEAD), _weights(2 * INNER, WIDTH), _weights(WIDTH, INNER))
            for _ in range(LAYERS)
        ]
        self.words = _weights(WORDS, WIDTH)
        self.ones = torch.ones(WIDTH, device=DEVICE, dtype=KIND)

    def open(self, rooms: int, room: int) -> None:
        self.cache = torch.zeros(LAYERS, 2, rooms, KV_HEADS, room, HEAD, device=DEVICE, dtype=KIND)

    def read(self, tokens: torch.Tensor, cached: int) -> torch.Tensor:
        """The next token of each conversation, `tokens` (conversations, n) standing behind `cached` others."""
        many, new = tokens.shape
        x = self.words[tokens]
        for number, (qkv, out, up, down) in enumerate(self.layers):
            normed = functional.rms_norm(x, (WIDTH,), self.ones)
            q, k, v = (normed @ qkv.T).split([HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD], dim=-1)
            q = q.view(many, new, HEADS, HEAD).transpose(1, 2)
            keys, values = self.cache[number, 0, :many], self.cache[number, 1, :many]
            keys[:, :, cached : cached + new] = k.view(many, new, KV_HEADS, HEAD).transpose(1, 2)
            values[:, :, cached : cached + new] = v.view(many, new, KV_HEADS, HEAD).transpose(1, 2)
            # a flash kernel's causal mask ends at the lower right: a new token sees all that is cached
            seen = torch.ops.aten._scaled_dot_product_flash_attention(
                q, keys[:, :, : cached + new], values[:, :, : cached + new], 0.0, new > 1
            )[0]
            x = x + seen.transpose(1, 2).reshape(many, new, HEADS * HEAD) @ out.T
            gate, value = (functional.rms_norm(x, (WIDTH,), self.ones) @ up.T).chunk(2, dim=-1)
            x = x + (functional.silu(gate) * value) @ down.T
        return (x[:, -1] @ self.words.T).argmax(-1, keepdim=True)


def _seconds(work: Callable[[], object], times: int = 5) -> float:
    """The best of so many runs, after one that is not counted."""
    work()
    best = float("inf")
    for _ in range(times):
        torch.cuda.synchronize()
        started = time.perf_counter()
        work()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return best


def _tokens(many: int, new: int) -> torch.Tensor:
    return torch.randint(WORDS, (many, new), device=DEVICE)


def reading(decoder: Decoder) -> list[dict[str, float]]:
    """Milliseconds until the first token, by tokens that are cached and tokens that are new."""
    rows: list[dict[str, float]] = []
    decoder.open(1, 66_000)
    for cached in (0, 4_000, 8_000, 16_000, 32_000, 64_000):
        for new in (128, 512, 2_000, 8_000, 32_000):
            if cached + new > 66_000:
                continue
            tokens = _tokens(1, new)
            took = _seconds(lambda tokens=tokens, cached=cached: decoder.read(tokens, cached), 3)
            rows.append({"cached": cached, "new": new, "ms": round(1000 * took, 2)})
    return rows


def writing(decoder: Decoder) -> list[dict[str, float]]:
    """Milliseconds a step in which each of so many conversations gets one token, by their length."""
    rows: list[dict[str, float]] = []
    for many in (1, 8, 16, 32, 64):
        for held in (2_000, 8_000, 32_000):
            needed = 2 * LAYERS * many * KV_HEADS * (held + 1) * HEAD * 2
            decoder.cache = torch.empty(0)
            torch.cuda.empty_cache()
            free = torch.cuda.mem_get_info()[0]
            if needed > 0.9 * free:
                print(f"{many} x {held}: no room ({needed / 1e9:.0f} of {free / 1e9:.0f} GB)", file=sys.stderr)
                continue
            decoder.open(many, held + 1)
            tokens = _tokens(many, 1)
            decoder.read(tokens, held)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                decoder.read(tokens, held)
            rows.append({"many": many, "held": held, "ms": round(1000 * _seconds(graph.replay), 2)})
            del graph
    return rows


def main() -> None:
    torch.manual_seed(0)
    with torch.inference_mode():
        decoder = Decoder()
        figures = {
            "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "weights_gb": round(torch.cuda.memory_allocated() / 1e9, 1),
            "kv_bytes_a_token": 2 * LAYERS * KV_HEADS * HEAD * 2,
            "reading": reading(decoder),
        }
        print(json.dumps(figures), flush=True)
        print(json.dumps({"writing": writing(decoder)}), flush=True)


if __name__ == "__main__":
    main()
