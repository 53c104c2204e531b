"""Admission of a request's sampling parameters to its slot."""

from __future__ import annotations

from kernels.lang import cuda, float_of_bits, i32, kernel

RECORD_SEED, RECORD_TEMPERATURE, RECORD_TOP_K, RECORD_TOP_P, RECORD_MIN_P = 0, 2, 3, 4, 5
"""Places in a sampling record: seed (two words, low first), temperature, top_k, top_p, min_p."""

SAMPLING_RECORD = 6
"""int32 words of a sampling record."""


@kernel(writes=("temperature", "seed", "top_k", "top_p", "min_p"))
def admit_sampling(temperature, seed, top_k, top_p, min_p, record, sampling_record):
    """Give the sampling state of a slot to a request: every field is written, whatever the slot held.

    temperature, top_p, min_p float32 [N] out;  top_k int32 [N] out;  seed int32 [N, 2] out
    record          int32 [>= 1]: its first word is the slot (kernels/slots.py: the admission record of the same request)
    sampling_record int32 [SAMPLING_RECORD]: the fields in the order above; floats as their bits

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
