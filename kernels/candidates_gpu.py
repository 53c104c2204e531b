"""A warp's stretch of columns on a GPU (kernels/candidates.py): sixteen of its runs at a time, with all their loads under way."""

from __future__ import annotations

from kernels.argmax import float_order
from kernels.lang import cuda, device_function, i32, i64
from kernels.lang_element import element
from kernels.lang_warp import lane

_RUN = 32
_NOTHING = i32(-2147483648)


@device_function
def order_at(logits, start, column, vocab_size):
    """Of a column of the row that begins at element `start`; nothing behind the last column, of which nothing is read."""
    order = float_order(element(logits, start + i64(min(column, i32(vocab_size - i32(1))))))
    return order if column < vocab_size else _NOTHING


@device_function
def eight_orders(logits, start, column, step, vocab_size):
    b, c, d = i32(column + step), i32(column + i32(2) * step), i32(column + i32(3) * step)
    e, f = i32(column + i32(4) * step), i32(column + i32(5) * step)
    g, h = i32(column + i32(6) * step), i32(column + i32(7) * step)
    return (
        order_at(logits, start, column, vocab_size),
        order_at(logits, start, b, vocab_size),
        order_at(logits, start, c, vocab_size),
        order_at(logits, start, d, vocab_size),
        order_at(logits, start, e, vocab_size),
        order_at(logits, start, f, vocab_size),
        order_at(logits, start, g, vocab_size),
        order_at(logits, start, h, vocab_size),
    )


def yes():
    return True


def stretch_maximum(logits, row, stretch, stretches, vocab_size):
    first, step, start = i32(stretch * i32(_RUN)), i32(stretches * i32(_RUN)), i64(row) * i64(logits.shape[1])
    largest = _NOTHING
    while first < vocab_size:
        a, b, c, d, e, f, g, h = eight_orders(logits, start, i32(first + lane()), step, vocab_size)
        p, q, r, s, t, u, v, w = eight_orders(logits, start, i32(first + i32(8) * step + lane()), step, vocab_size)
        largest = max(largest, max(max(max(a, b), max(c, d)), max(max(e, f), max(g, h))))
        largest = max(largest, max(max(max(p, q), max(r, s)), max(max(t, u), max(v, w))))
        first = i32(first + i32(16) * step)
    return largest


@device_function
def put(found, listed_order, listed_column, order, column, least):
    """One column on the list if it reaches `least` and there is room."""
    if order >= least:
        place = cuda.atomic.add(found, 0, i32(1))
        if place < i32(listed_order.shape[0]):
            listed_order[place] = order
            listed_column[place] = column


@device_function
def put_eight(found, listed_order, listed_column, orders, column, step, least):
    a, b, c, d, e, f, g, h = orders
    if max(max(max(a, b), max(c, d)), max(max(e, f), max(g, h))) >= least:
        put(found, listed_order, listed_column, a, column, least)
        put(found, listed_order, listed_column, b, i32(column + step), least)
        put(found, listed_order, listed_column, c, i32(column + i32(2) * step), least)
        put(found, listed_order, listed_column, d, i32(column + i32(3) * step), least)
        put(found, listed_order, listed_column, e, i32(column + i32(4) * step), least)
        put(found, listed_order, listed_column, f, i32(column + i32(5) * step), least)
        put(found, listed_order, listed_column, g, i32(column + i32(6) * step), least)
        put(found, listed_order, listed_column, h, i32(column + i32(7) * step), least)


def list_stretch(found, listed_order, listed_column, logits, row, stretch, stretches, vocab_size, least):
    first, step, start = i32(stretch * i32(_RUN)), i32(stretches * i32(_RUN)), i64(row) * i64(logits.shape[1])
    while first < vocab_size:
        column, behind = i32(first + lane()), i32(first + lane() + i32(8) * step)
        a, b, c, d, e, f, g, h = eight_orders(logits, start, column, step, vocab_size)
        p, q, r, s, t, u, v, w = eight_orders(logits, start, behind, step, vocab_size)
        put_eight(found, listed_order, listed_column, (a, b, c, d, e, f, g, h), column, step, least)
        put_eight(found, listed_order, listed_column, (p, q, r, s, t, u, v, w), behind, step, least)
        first = i32(first + i32(16) * step)
