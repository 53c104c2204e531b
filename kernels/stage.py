"""The two ends of a step in device memory: taking the staged inputs, publishing the outcome."""

from __future__ import annotations

from kernels.lang import cuda, i32, kernel


@kernel(writes=("inputs", "cursor"))
def take_inputs(inputs, cursor, ring):
    """Integrated policy: copy the ring block of the next step into the step's inputs, then count the step.

    inputs [words]; ring [depth, words] mapped memory that the host writes; cursor [1] steps taken so far.
    Launch: ONE block (the cursor moves after every thread has read it); threads over words.
    Capture-safe: a replayed graph with frozen addresses reads block cursor % depth. Oracle: oracle_step.take_inputs.
    """
    block = i32(cursor[0] % ring.shape[0])
    for word in range(cuda.threadIdx.x, inputs.shape[0], cuda.blockDim.x):
        inputs[word] = ring[block, word]
    cuda.syncthreads()
    if cuda.threadIdx.x == 0:
        cursor[0] += i32(1)


@kernel(writes=("outcomes",))
def publish(outcomes, step, sampled, num_sampled, num_drafts, finished, idx_mapping, num_requests):
    """Gather a step's results into block step % depth of the outcome ring: [num_sampled, num_drafts, finished, sampled...].

    outcomes [depth, N, 3 + W]; step [1]; sampled [N, W] by row; num_sampled, num_drafts [N] by row; finished [N] by slot.
    Launch: any; threads over rows. Each row is owned by one thread. Oracle: oracle_step.publish.
    """
    block = i32(step[0] % outcomes.shape[0])
    for row in range(cuda.grid(1), num_requests[0], cuda.gridsize(1)):
        outcomes[block, row, 0] = num_sampled[row]
        outcomes[block, row, 1] = num_drafts[row]
        outcomes[block, row, 2] = finished[idx_mapping[row]]
        for column in range(sampled.shape[1]):
            outcomes[block, row, 3 + column] = sampled[row, column]
