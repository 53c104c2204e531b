"""Vectors: inputs and expected outputs in JSON, run through the real kernels and host functions by one adapter.

Rows of the list that stand in no file here, because no op of the adapter has their form, are tests of the same property that name
the row (V3, V7, L1 to L3, Q4, M7, M8 and so on). Two belong to another structure than this project's:

M3  flattens what was emitted into the layout of the logits rows. Nothing is flattened here: `sampled` [R, W] goes to the host as it
    is, with -1 behind a row's tokens. That the two say the same is tests/test_kernels_accept.py's
    `test_what_is_emitted_lies_where_its_logits_rows_lie`.
Q5  a window in which drafts are kept although the target disagrees. That is not the target's text any more, so there is no such
    mode; the standard half of the row is the vector Q5-standard. Drafts that are kept whatever the target says exist for timing
    alone (synthetic acceptance, S1 to S3).
"""
