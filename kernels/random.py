"""Random numbers that depend on nothing but what they are for: Philox4x32-10, keyed by the seed of a request.

The key is the request's 64-bit seed; the counter is (index, position, role, part). Nothing of a batch, a step or a device enters
it, so a request draws the same numbers alone and among others, in graphs of any size, one step ahead or not, before and after a
preemption. `position` is where the token stands that a number helps to choose, counted from the start of the prompt; `role` keeps
apart what is drawn for one position; `index` counts within a role (a column of the vocabulary, a candidate).

Method: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

import math

from kernels.lang import bits_of_float, device_function, f32, i32, u32, u64

ROLE_TOKEN, ROLE_DRAFT, ROLE_ACCEPT, ROLE_RESIDUAL = 0x746F6B65, 0x64726166, 0x61636370, 0x72657369
"""What a number is drawn for: the target's own token, a drafter's token, whether a draft is accepted, a token instead of it."""

TILE = 1024
"""Columns that share a range of counters: column c takes word c % TILE // QUARTER of call c // TILE * QUARTER + c % QUARTER, so
that neighbouring threads, and neighbouring lanes of a CPU's vector, read neighbouring columns."""

QUARTER = TILE // 4

_LOW = u64(0xFFFFFFFF)
_HIGH_PART, _LOW_PART = 0, 1


@device_function
def philox(c0, c1, c2, c3, k0, k1):
    """Four words uint32 of the counter (c0, c1, c2, c3) under the key (k0, k1); all uint32."""
    for _ in range(10):
        first = u64(u64(0xD2511F53) * u64(c0))
        second = u64(u64(0xCD9E8D57) * u64(c2))
        c0 = u32(u32(second >> u64(32)) ^ c1 ^ k0)
        c1 = u32(second & _LOW)
        c2 = u32(u32(first >> u64(32)) ^ c3 ^ k1)
        c3 = u32(first & _LOW)
        k0 = u32(u64(u64(k0) + u64(0x9E3779B9)) & _LOW)
        k1 = u32(u64(u64(k1) + u64(0xBB67AE85)) & _LOW)
    return c0, c1, c2, c3


@device_function
def unsigned(bits):
    """The uint32 with the bits of an int32."""
    return u32(u64(i32(bits)) & _LOW)


@device_function
def open_uniform(high, low):
    """A float32 in (0, 1) from 64 random bits, as finely resolved near 0 as a float32 can be: from 2**-65 on."""
    u = f32(f32(f32(high) + f32(f32(low) * f32(2.0**-32))) * f32(2.0**-32)) + f32(2.0**-65)
    return min(u, f32(1.0 - 2.0**-24))


@device_function
def uniform(seed_low, seed_high, position, role, index):
    """A float32 in (0, 1). Seeds: the request's two words (int32 bits); position, role, index: int32 >= 0."""
    high, low, _, _ = philox(
        unsigned(index), unsigned(position), unsigned(role), u32(_HIGH_PART), unsigned(seed_low), unsigned(seed_high)
    )
    return open_uniform(high, low)


@device_function
def exponential_of(u):
    """An exponential variate of rate 1 from u in (0, 1): -log(1 - u), exact where u is small, which is where a race is decided."""
    return f32(-f32(math.log1p(f32(-u))))


@device_function
def call_of_column(column):
    """The Philox call that a column of the vocabulary takes a word of."""
    return i32(i32(column // i32(TILE)) * i32(QUARTER) + i32(column % i32(QUARTER)))


@device_function
def word_of(words, which):
    """words[which] of the four words of a call."""
    word = words[0]
    if which == 1:
        word = words[1]
    if which == 2:
        word = words[2]
    if which == 3:
        word = words[3]
    return word


@device_function
def high_words(call, position, role, k0, k1):
    """The high halves of the numbers of the four columns of a call. position, role, k0, k1: uint32."""
    return philox(u32(call), position, role, u32(_HIGH_PART), k0, k1)


@device_function
def low_words(call, position, role, k0, k1):
    """The low halves; needed only for a column that may win."""
    return philox(u32(call), position, role, u32(_LOW_PART), k0, k1)


@device_function
def gumbel(high, low):
    """A standard Gumbel variate from 64 random bits; its upper tail is as long as the bits allow, up to 45."""
    return f32(-f32(math.log(exponential_of(open_uniform(high, low)))))


@device_function
def gumbel_bound(high):
    """At least gumbel(high, any low word), by at most 0.07 where it is large.

    -log(1 - u) >= u, and log2 of a float is at least what its bits say when they are read as a number: both errors go one way.
    """
    bits = bits_of_float(f32(i32(high >> u32(8))))
    return f32(f32(104.66529) - f32(bits) * f32(8.2629582e-08))


@device_function
def column_gumbel(seed_low, seed_high, position, role, column):
    """The Gumbel variate of one column of the vocabulary, the same that a race over the whole vocabulary uses for it."""
    k0, k1 = unsigned(seed_low), unsigned(seed_high)
    call, which = call_of_column(column), i32(i32(column % i32(TILE)) // i32(QUARTER))
    high = word_of(high_words(call, unsigned(position), unsigned(role), k0, k1), which)
    low = word_of(low_words(call, unsigned(position), unsigned(role), k0, k1), which)
    return gumbel(high, low)


@device_function
def draft_gumbel(seed_low, seed_high, position, place, token):
    """The Gumbel variate of a token that may become draft `place` (0, 1, ...) of a block, at `position`.

    Drafts of a position are drawn again in every block that reaches it, and what became of the last one says something about its
    numbers: a block therefore has numbers of its own, told apart by where it starts.
    """
    return column_gumbel(seed_low, seed_high, i32(position - place - i32(1)), i32(i32(ROLE_DRAFT) + place), token)


@device_function
def accept_uniform(seed_low, seed_high, position, place):
    """The number in (0, 1) that decides on draft `place` of a block, at `position`; of its block alone, like the draft's own."""
    return uniform(seed_low, seed_high, position, i32(ROLE_ACCEPT), i32(position - place - i32(1)))
