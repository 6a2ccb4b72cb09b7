"""Sliding windows over a document as plans of integers: which tokens are read, which are scored; no torch.

Press, Smith, Lewis, "Train Short, Test Long" (ICLR 2022), appendix B: each window advances by ``stride`` and scores only
the tokens that are new in it, so each has at least ``window - stride`` tokens before it.
"""

from dataclasses import dataclass

from skipwise.errors import RecipeError


@dataclass(frozen=True)
class Window:
    """Feed ``tokens[begin:end]``, score the targets ``scored_from .. end - 1``; all are absolute indices.

    The prediction of target t is made at t - 1, so ``begin < scored_from < end``.
    """

    begin: int
    end: int
    scored_from: int

    @property
    def width(self) -> int:
        return self.end - self.begin

    @property
    def context(self) -> int:
        """How many tokens are before the first target, the least context of any target here."""
        return self.scored_from - self.begin


def sliding_windows(tokens: int, window: int, stride: int) -> list[Window]:
    """Cover a document: every token but the first is scored exactly once.

    The first window scores all its tokens. The last ends with the document: it may advance by less than
    ``stride`` and is still ``window`` wide. A document shorter than ``window`` is one short window; one of
    fewer than two tokens has nothing to score. With ``stride == window`` neighbours share one token, the
    context without which the next token could not be scored.
    """
    if not 1 <= stride <= window or window < 2:
        raise RecipeError(f"stride {stride} must lie between 1 and the window, and window {window} must be at least 2")
    if tokens < 2:
        return []
    end = min(window, tokens)
    windows = [Window(0, end, 1)]
    while end < tokens:
        scored_from, end = end, min(end + min(stride, window - 1), tokens)
        windows.append(Window(end - window, end, scored_from))
    return windows


def position_buckets(length: int, original: int) -> list[int]:
    """Return the edges of position buckets: a quarter of ``original``, doubled up to ``length``.

    Bucket i holds the targets ``edges[i] .. edges[i + 1] - 1``; the first edge is 1, because nothing comes
    before the token at 0. The original length is always an edge, also if it is no multiple of four.
    """
    edges, edge = {1, length}, max(2, original // 4)
    while edge < length:
        edges.add(edge)
        edge *= 2
    return sorted(edges | {original} if 1 < original < length else edges)
