"""Generator: the target writes text, thousands of rows at once, with a static cache and one CUDA graph for each length of it.

Prompts are padded on their left, so that all rows stand at one cache slot and a step needs no index of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812

from runtime.speculators.train.target import Tensor, TorchTarget, attention, bias_of

logger = logging.getLogger(__name__)

Ids = npt.NDArray[np.int32]

LENGTH_STEP = 64  # cache lengths are rounded up to it: one graph each
PREFILL_ROWS = 256  # rows of a batch whose prompts pass the target together
LOOK_EVERY = 16  # steps between two looks at how many rows have ended
ENDED_ENOUGH = 0.97


class Generator:
    """Continuations of `batch` prompts at a time, of at most `length` tokens with the prompt."""

    def __init__(self, target: TorchTarget, batch: int, length: int) -> None:
        spec, device = target.spec, target.device
        self.target, self.batch = target, batch
        self.length = (length + LENGTH_STEP - 1) // LENGTH_STEP * LENGTH_STEP
        shape = (batch, spec.num_kv_heads, self.length, spec.head_dim)
        self._keys = [torch.zeros(shape, device=device, dtype=target.dtype) for _ in range(spec.num_layers)]
        self._values = [torch.zeros_like(keys) for keys in self._keys]
        self._bias = torch.zeros(batch, 1, 1, self.length, device=device, dtype=target.dtype)
        self._last = torch.zeros(batch, dtype=torch.long, device=device)
        self._pads = torch.zeros(batch, dtype=torch.long, device=device)
        self._slot = torch.zeros(1, dtype=torch.long, device=device)
        self._temperature = torch.zeros(batch, 1, device=device)
        self._written = torch.zeros(batch, self.length + 1, dtype=torch.long, device=device)
        self._graphs: dict[int, Any] = {}
        self._attend = self._faster_attention() if device.type == "cuda" else _two_products

    def _faster_attention(self) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """One query row against a long cache suits no library kernel well: which is best depends on batch and shapes."""
        spec, seconds = self.target.spec, {}
        q = torch.zeros(self.batch, spec.num_kv_heads, spec.num_heads // spec.num_kv_heads, spec.head_dim)
        q = q.to(self.target.device, self.target.dtype)
        for attend in (_two_products, _library_attention):
            for repeats in (3, 10):
                torch.cuda.synchronize()
                start = time.perf_counter()
                for _ in range(repeats):
                    attend(q, self._keys[0], self._values[0], self._bias)
                torch.cuda.synchronize()
                seconds[attend] = time.perf_counter() - start
        chosen = min(seconds, key=lambda attend: seconds[attend])
        logger.info("attention of generation: %s, %.3f ms a layer", chosen.__name__.strip("_"), seconds[chosen] * 100)
        return chosen

    @torch.no_grad()
    def run(
        self, prompts: Sequence[Sequence[int]], temperatures: Sequence[float], max_new: int, stop_ids: Sequence[int]
    ) -> list[tuple[Ids, bool]]:
        """(continuation with its stop token, did it stop) of each prompt; temperature 0 is greedy.

        len(prompts) <= batch, and no prompt is longer than length - 1 tokens.
        """
        count, width = len(prompts), (max(map(len, prompts)) + 15) // 16 * 16
        max_new = min(max_new, self.length - width)
        rows = [prompts[index % count] for index in range(self.batch)]
        warmth = [temperatures[index % count] for index in range(self.batch)]
        self._prefill(rows, warmth, width)
        stops = torch.as_tensor(list(stop_ids), device=self.target.device)
        made = 1
        while made < max_new:
            self._advance(width + made - 1)
            made += 1
            if made % LOOK_EVERY == 0:
                ended = torch.isin(self._written[:count, width : width + made], stops).any(1)
                if float(ended.float().mean()) > ENDED_ENOUGH:
                    break
        text = self._written[:count, width : width + made].to(torch.int32).cpu().numpy()
        ends = np.isin(text, np.asarray(list(stop_ids)))
        return [(row[: end.argmax() + 1], True) if end.any() else (row, False) for row, end in zip(text, ends, strict=True)]

    def _prefill(self, rows: Sequence[Sequence[int]], temperatures: Sequence[float], width: int) -> None:
        device = self.target.device
        ids = np.zeros((self.batch, width), np.int64)
        for index, row in enumerate(rows):
            ids[index, width - len(row) :] = row
        tokens = torch.from_numpy(ids).to(device)
        self._pads.copy_(torch.tensor([width - len(row) for row in rows]))
        at = torch.arange(self.length, device=device)
        self._bias.copy_(bias_of((at < width) & (at >= self._pads[:, None]), self._bias.dtype)[:, None, None])
        warmth = torch.as_tensor(list(temperatures), dtype=torch.float32, device=device)[:, None]
        before = torch.ones(width, width, dtype=torch.bool, device=device).tril()
        itself = torch.eye(width, dtype=torch.bool, device=device)  # a pad must see something
        for first in range(0, self.batch, PREFILL_ROWS):
            part = slice(first, first + PREFILL_ROWS)
            seen = before & (at[:width] >= self._pads[part, None])[:, None] | itself
            bias = bias_of(seen, self.target.dtype)[:, None]

            def attend(layer: int, q: Tensor, k: Tensor, v: Tensor, part: slice = part, bias: Tensor = bias) -> Tensor:
                self._keys[layer][part, :, :width], self._values[layer][part, :, :width] = k, v
                return attention(q, k, v, bias)

            positions = (at[:width] - self._pads[part, None]).clamp_min(0)
            x, _ = self.target.run(tokens[part], positions, attend)
            self._last[part] = self._sample(x[:, -1], warmth[part])
        self._temperature.copy_(warmth)
        self._slot.fill_(width)
        self._written.zero_()
        self._written[:, width] = self._last

    def _sample(self, x: Tensor, temperature: Tensor) -> Tensor:
        """Gumbel-max: argmax of logits + temperature * Gumbel noise, at temperature 0 the plain argmax."""
        logits = self.target.logits(x).float()
        noise = torch.empty_like(logits).exponential_().clamp_min_(1e-20).log_()
        return logits.addcmul_(noise, temperature, value=-1).argmax(-1)

    def _step(self, length: int) -> None:
        """Every row's next token; `length` cache slots are looked at."""
        self._bias.index_fill_(3, self._slot, 0.0)
        spec = self.target.spec

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = self._keys[layer], self._values[layer]
            keys.index_copy_(2, self._slot, k)
            values.index_copy_(2, self._slot, v)
            grouped = q.reshape(self.batch, spec.num_kv_heads, -1, spec.head_dim)
            return self._attend(grouped, keys[:, :, :length], values[:, :, :length], self._bias[..., :length]).reshape(q.shape)

        x, _ = self.target.run(self._last[:, None], (self._slot - self._pads)[:, None], attend)
        self._last.copy_(self._sample(x[:, -1], self._temperature))
        self._slot.add_(1)
        self._written.index_copy_(1, self._slot, self._last[:, None])

    def _advance(self, slot: int) -> None:
        length = min(self.length, (slot + LENGTH_STEP) // LENGTH_STEP * LENGTH_STEP)
        if self.target.device.type != "cuda":
            return self._step(length)
        if length not in self._graphs:
            self._graphs[length] = self._capture(length)
        self._graphs[length].replay()
        return None

    def _capture(self, length: int) -> Any:
        """A graph of one step. The step that warms up for the capture is undone."""
        state = (self._last, self._slot, self._written, self._bias)
        kept = [tensor.clone() for tensor in state]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step(length)
        torch.cuda.current_stream().wait_stream(side)
        for tensor, old in zip(state, kept, strict=True):
            tensor.copy_(old)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=next(iter(self._graphs.values())).pool() if self._graphs else None):
            self._step(length)
        return graph


def _two_products(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """q [B, nkv, group, hd] against the cache [B, nkv, S, hd]."""
    scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(-1, -2)).add_(bias)
    return torch.matmul(scores.softmax(-1), v)


def _library_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(-1, q.shape[1], q.shape[2], -1))

