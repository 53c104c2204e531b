"""The picture at the end of a run: losses, and acceptance on training text and on the validation prompts, over the steps."""

from __future__ import annotations

import logging
from pathlib import Path

from runtime.speculators.train.trainer import Log

logger = logging.getLogger(__name__)


def plot_log(log: Log, path: Path, title: str) -> None:
    """Write a PNG; without matplotlib say so, since the drafter is what the hours went into."""
    try:
        import matplotlib
    except ImportError:
        logger.warning("%s is not drawn: matplotlib is missing (extra train)", path)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    steps = [note["step"] for note in log.notes]
    left.plot(steps, [note["loss"] for note in log.notes], label="head")
    left.plot(steps, [note["selector_loss"] for note in log.notes], label="selector")
    left.set(xlabel="step", ylabel="weighted cross entropy", title="loss (it falls where D-PACE sets in: other weights)")
    right.plot(steps, [note["mean_acceptance_length"] for note in log.notes], label="random anchors of training text", alpha=0.5)
    measured = [(item["step"], item["mean_acceptance_length"]) for item in log.acceptance]
    right.plot(*zip(*measured, strict=True) if measured else ([], []), marker=".", label="validation prompts")
    right.set(xlabel="step", ylabel="tokens a step", title="mean acceptance length, greedy")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    plt.close(figure)
