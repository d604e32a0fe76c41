"""The encoder of BERT (Devlin et al. 2019) in numpy, as sentence-transformers runs it: mean over the word pieces,
length 1.

numpy is an extra: this module is only imported to embed texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

Floats = NDArray[np.float32]

_HEADS = 12
_EPSILON = 1e-12
_MASKED = np.float32(-1e9)
# Abramowitz and Stegun, formula 7.1.26: the error function to 1.5e-7, which is what float32 can hold.
_ERF = tuple(np.float32(number) for number in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592))
_ERF_P = np.float32(0.3275911)
# Rows of the widest layer that are computed at once, so that they stay in the processor's cache.
_CACHED_ROWS = 32


@dataclass(frozen=True, slots=True)
class _Linear:
    weight: Floats
    bias: Floats

    def __call__(self, rows: Floats) -> Floats:
        product: Floats = rows @ self.weight
        product += self.bias
        return product


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: Floats
    bias: Floats

    def __call__(self, rows: Floats) -> Floats:
        rows -= rows.mean(axis=-1, keepdims=True)
        deviation = np.sqrt(np.square(rows).mean(axis=-1, keepdims=True) + np.float32(_EPSILON))
        rows /= deviation
        rows *= self.weight
        rows += self.bias
        return rows


@dataclass(frozen=True, slots=True)
class _Layer:
    attention: _Linear
    joined: _Linear
    attention_norm: _Norm
    wide: _Linear
    narrow: _Linear
    output_norm: _Norm

    def __call__(self, hidden: Floats, masked: Floats) -> Floats:
        hidden = self.attention_norm(hidden + self.joined(self._attended(hidden, masked)))
        return self.output_norm(hidden + self.narrow(_gelu(self.wide(hidden))))

    def _attended(self, hidden: Floats, masked: Floats) -> Floats:
        texts, length, width = hidden.shape
        parts = self.attention(hidden).reshape(texts, length, 3, _HEADS, width // _HEADS)
        query, key, value = parts.transpose(2, 0, 3, 1, 4)
        weights: Floats = query @ key.transpose(0, 1, 3, 2)
        weights += masked
        weights -= weights.max(axis=-1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights @ value).transpose(0, 2, 1, 3).reshape(texts, length, width)


class Bert:
    """A model of `all-MiniLM-L6-v2`'s kind.

    Args:
        path: of its weights, a safetensors file of float32. They are kept in memory.
    """

    def __init__(self, path: Path) -> None:
        tensors = load_file(path)
        self._words: Floats = tensors["embeddings.word_embeddings.weight"]
        self._places: Floats = (
            tensors["embeddings.position_embeddings.weight"] + tensors["embeddings.token_type_embeddings.weight"][0]
        )
        self._norm = _norm(tensors, "embeddings.LayerNorm")
        count = sum(name.endswith("attention.self.query.weight") for name in tensors)
        self._layers = [_layer(tensors, f"encoder.layer.{number}") for number in range(count)]

    def encode(self, pieces: Sequence[Sequence[int]]) -> Floats:
        """A row of length 1 for each text, given as the ids of its 1 to 512 word pieces."""
        lengths = np.array([len(piece) for piece in pieces])
        ids = np.zeros((len(pieces), lengths.max()), dtype=np.int64)
        for row, piece_ids in zip(ids, pieces, strict=True):
            row[: len(piece_ids)] = piece_ids
        present = np.arange(ids.shape[1]) < lengths[:, None]
        masked = np.where(present, np.float32(0), _MASKED)[:, None, None, :]
        hidden = self._norm(self._words[ids] + self._places[: ids.shape[1]])
        for layer in self._layers:
            hidden = layer(hidden, masked)
        hidden *= present[:, :, None]
        summed: Floats = hidden.sum(axis=1) / lengths[:, None].astype(np.float32)
        return summed / np.maximum(np.linalg.norm(summed, axis=1, keepdims=True), np.float32(_EPSILON))


def _gelu(rows: Floats) -> Floats:
    flat = rows.reshape(-1, rows.shape[-1])
    for start in range(0, len(flat), _CACHED_ROWS):
        _gelu_in_place(flat[start : start + _CACHED_ROWS])
    return rows


def _gelu_in_place(rows: Floats) -> None:
    scaled = np.abs(rows)
    scaled *= np.float32(2**-0.5)
    step = scaled * _ERF_P
    step += np.float32(1)
    np.reciprocal(step, out=step)
    polynomial = step * _ERF[0]
    for factor in _ERF[1:]:
        polynomial += factor
        polynomial *= step
    np.square(scaled, out=scaled)
    np.negative(scaled, out=scaled)
    np.exp(scaled, out=scaled)
    polynomial *= scaled  # 1 - erf(|x| / sqrt 2)
    np.subtract(np.float32(1), polynomial, out=polynomial)
    np.copysign(polynomial, rows, out=polynomial)
    polynomial += np.float32(1)
    rows *= np.float32(0.5)
    rows *= polynomial


def _layer(tensors: dict[str, Floats], name: str) -> _Layer:
    own = [_linear(tensors, f"{name}.attention.self.{part}") for part in ("query", "key", "value")]
    # The scale of the attention scores is applied once, to the weights of the query.
    scale = np.float32((own[0].weight.shape[1] // _HEADS) ** -0.5)
    weights = [own[0].weight * scale, own[1].weight, own[2].weight]
    biases = [own[0].bias * scale, own[1].bias, own[2].bias]
    return _Layer(
        attention=_Linear(np.ascontiguousarray(np.concatenate(weights, axis=1)), np.concatenate(biases)),
        joined=_linear(tensors, f"{name}.attention.output.dense"),
        attention_norm=_norm(tensors, f"{name}.attention.output.LayerNorm"),
        wide=_linear(tensors, f"{name}.intermediate.dense"),
        narrow=_linear(tensors, f"{name}.output.dense"),
        output_norm=_norm(tensors, f"{name}.output.LayerNorm"),
    )


def _linear(tensors: dict[str, Floats], name: str) -> _Linear:
    return _Linear(tensors[f"{name}.weight"].T, tensors[f"{name}.bias"])


def _norm(tensors: dict[str, Floats], name: str) -> _Norm:
    return _Norm(tensors[f"{name}.weight"], tensors[f"{name}.bias"])
