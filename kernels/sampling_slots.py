"""Admission of a request's sampling parameters to its slot."""

from __future__ import annotations

from kernels.lang import cuda, float_of_bits, i32, kernel

RECORD_SEED, RECORD_TEMPERATURE, RECORD_TOP_K, RECORD_TOP_P, RECORD_MIN_P = 0, 2, 3, 4, 5
RECORD_REPETITION, RECORD_PRESENCE, RECORD_FREQUENCY = 6, 7, 8
RECORD_NUM_LOGPROBS, RECORD_NUM_BIAS, RECORD_NUM_BAD, RECORD_RESTRICTED = 9, 10, 11, 12
"""Places in a sampling record; the seed has two words, low first, and floats are there as their bits."""

SAMPLING_RECORD = 13
"""int32 words of a sampling record."""


@kernel(
    writes=(
        "temperature",
        "seed",
        "top_k",
        "top_p",
        "min_p",
        "repetition",
        "presence",
        "frequency",
        "num_logprobs",
        "num_bias",
        "num_bad",
        "restricted",
    )
)
def admit_sampling(
    temperature,
    seed,
    top_k,
    top_p,
    min_p,
    repetition,
    presence,
    frequency,
    num_logprobs,
    num_bias,
    num_bad,
    restricted,
    record,
    sampling_record,
):
    """Give the sampling state of a slot to a request: every field is written, whatever the slot held.

    temperature, top_p, min_p, repetition, presence, frequency  float32 [N] out;  seed int32 [N, 2] out
    top_k, num_logprobs, num_bias, num_bad, restricted          int32 [N] out
    record          int32 [>= 1]: its first word is the slot (kernels/slots.py: the admission record of the same request)
    sampling_record int32 [SAMPLING_RECORD]: the fields at the places above

    What a slot holds beyond these (lists, counts) is read as far as these say, so that nothing of an earlier owner is.

    A slot outside [0, N) writes nothing. Launch: one thread writes (grid 1, block 32). No barrier. Capture safe.
    Oracle: kernels.oracle_sampling.admit_sampling.
    """
    slot = i32(record[0])
    if cuda.grid(1) == 0 and slot >= i32(0) and slot < i32(temperature.shape[0]):
        seed[slot, 0] = sampling_record[RECORD_SEED]
        seed[slot, 1] = sampling_record[RECORD_SEED + 1]
        temperature[slot] = float_of_bits(sampling_record[RECORD_TEMPERATURE])
        top_k[slot] = sampling_record[RECORD_TOP_K]
        top_p[slot] = float_of_bits(sampling_record[RECORD_TOP_P])
        min_p[slot] = float_of_bits(sampling_record[RECORD_MIN_P])
        repetition[slot] = float_of_bits(sampling_record[RECORD_REPETITION])
        presence[slot] = float_of_bits(sampling_record[RECORD_PRESENCE])
        frequency[slot] = float_of_bits(sampling_record[RECORD_FREQUENCY])
        num_logprobs[slot] = sampling_record[RECORD_NUM_LOGPROBS]
        num_bias[slot] = sampling_record[RECORD_NUM_BIAS]
        num_bad[slot] = sampling_record[RECORD_NUM_BAD]
        restricted[slot] = sampling_record[RECORD_RESTRICTED]
