"""Writing: batches of prompts are made and answered by the target until there is text enough."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from runtime.console import ProgressBars
from runtime.speculators.train.documents import Document, DocumentStore
from runtime.speculators.train.generate import Generator
from runtime.speculators.train.held_out import HeldOut
from runtime.speculators.train.prompts import ChatFrame, PromptMaker
from runtime.speculators.train.settings import DataSettings
from runtime.speculators.train.target import TorchTarget
from runtime.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

USER_TURN_TOKENS = 48  # a user's turn that the target writes is dropped when it is longer


def write_documents(
    settings: DataSettings,
    target: TorchTarget,
    frame: ChatFrame,
    tokenizer: Tokenizer,
    held_out: HeldOut,
    own_prompts: Sequence[str],
    store: DocumentStore,
    bars: ProgressBars,
) -> None:
    """Add to `store` until `settings.seconds` have gone into it or it holds `settings.max_tokens` of answers."""

    def ended() -> bool:
        return store.seconds >= settings.seconds or store.num_answer_tokens >= settings.max_tokens

    if ended():
        return
    generator = Generator(target, settings.batch, settings.max_prompt_tokens + max(USER_TURN_TOKENS, *settings.answer_tokens))
    # Neither what was written before nor another run's text comes again.
    luck = np.random.default_rng([settings.seed, store.batches])
    torch.manual_seed(int(luck.integers(2**62)))

    def write(heads: Sequence[Sequence[int]]) -> list[tuple[Any, bool]]:
        warmth = luck.choice(settings.prompt_temperatures, size=len(heads))
        return generator.run(heads, warmth.tolist(), USER_TURN_TOKENS, frame.stop_ids)

    maker = PromptMaker(frame, settings, held_out, write, own_prompts)
    with bars("writing text", "seconds") as advance:
        while not ended():
            begun, refused = time.monotonic(), maker.refused
            kind, prompts = maker.batch(settings.batch, store.documents, store.batches)
            greedy = luck.random(len(prompts)) < settings.greedy_share
            warmth = np.where(greedy, 0.0, luck.choice(settings.answer_temperatures, size=len(prompts)))
            length = settings.answer_tokens[store.batches % len(settings.answer_tokens)]
            answers = generator.run(prompts, warmth.tolist(), length, tokenizer.eos_token_ids)
            pairs = zip(prompts, answers, strict=True)
            documents = [Document(np.asarray(prompt, np.int32), answer) for prompt, (answer, _) in pairs if len(answer) > 1]
            if documents:
                store.add(kind, documents, time.monotonic() - begun, maker.refused - refused)
            advance(int(store.seconds), int(settings.seconds))
            logger.info("batch %d, %s: %d answers, %d tokens", store.batches, kind, len(documents), store.num_answer_tokens)
