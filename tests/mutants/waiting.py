"""Mutations of what judges the host's waits by a tracer, and of what is said when a GPU has no memory left or is not there."""

from __future__ import annotations

from tests.mutants.mutation import mutation

_CALLS, _COLLECTOR = "runtime/profile/host_calls.py", "runtime/profile/call_collector.py"
_TEST, _FAULTS = "tests/test_host_calls.py::test_", "tests/test_cuda_device_faults.py::test_"
_TEXT = "no text comes of it: a step that waits is called sound"
_MESSAGE = "the same end, and a remedy that does not help"

MUTATIONS = (
    mutation(
        "wait-for-any-event",
        "9b-18",
        _CALLS,
        'return [] if call.waits == (f"an event of {allowed}",) else [',
        "return [] if call.waits else [",
        test=_TEST + "each_way_to_wait_is_reported",
        text=_TEXT,
        expects="ValueError|AssertionError|assert ",
    ),
    mutation(
        "call-that-nobody-listed",
        "9b-18",
        _CALLS,
        "    if unknown:\n",
        "    if unknown and call.waits:\n",
        test=_TEST + "each_way_to_wait_is_reported",
        text=_TEXT,
        expects="ValueError|AssertionError|assert ",
    ),
    mutation(
        "wait-within-a-call",
        "9b-18",
        _CALLS,
        "for number in numbers for wait in waits[number])",
        "for number in numbers[:1] for wait in waits[number])",
        test=_TEST + "calls_within_a_call_belong_to_it_and_bring_their_waits",
        text=_TEXT,
    ),
    mutation(
        "event-by-the-wrong-recording",
        "9b-18",
        _COLLECTOR,
        "int(record.stream_id), int(record.cuda_event_sync_id)))",
        "int(record.stream_id), int(record.correlation_id)))",
        test=_TEST + "a_steady_engine_waits_for_the_copy_stream_and_for_nothing_else",
        text="no text comes of it: sound steps are reported, and nobody heeds reports any more",
    ),
    mutation(
        "wait-outside-the-window",
        "9b-18",
        _COLLECTOR,
        "[call for call in calls if begin <= call.start < end]",
        "calls",
        test=_TEST + "a_steady_engine_waits_for_the_copy_stream_and_for_nothing_else",
        text="no text comes of it: sound steps are reported, and nobody heeds reports any more",
    ),
    mutation(
        "copy-that-only-looks-asynchronous",
        "9b-25",
        _COLLECTOR,
        "            self._pageable.append(int(record.correlation_id))\n",
        "            pass\n",
        test=_TEST + "a_planted_wait_is_reported[pageable]",
        text=_TEXT,
        expects="IndexError|AssertionError|assert ",
    ),
    mutation(
        "counters-taken-at-their-word",
        "9b-18",
        _CALLS,
        "            if ours != traced:\n",
        "            if ours > traced:\n",
        test=_TEST + "a_planted_wait_is_reported[driver]",
        text=_TEXT,
    ),
    mutation(
        "full-memory-as-a-capture-that-fails",
        "D10",
        "runtime/cuda_room.py",
        "        error = error.__cause__\n    return False\n",
        "        error = error.__cause__\n        break\n    return False\n",
        test=_FAULTS + "a_node_that_finds_no_memory_says_so_too",
        text=_MESSAGE,
    ),
    mutation(
        "full-memory-as-a-kernel-that-does-not-compile",
        "D10",
        "runtime/cuda_compiler.py",
        "                if out_of_memory(error):\n",
        "                if isinstance(error, MemoryError):\n",
        test=_FAULTS + "a_kernel_that_cannot_be_had",
        text=_MESSAGE,
    ),
    mutation(
        "absent-gpu-after-the-model",
        "D10",
        "runtime/assembly.py",
        "        refuse_absent_gpu(config.device)  # before a model is fetched\n",
        "        pass\n",
        test="tests/test_cuda_device_without_gpu.py::test_a_gpu_that_is_asked_for_and_absent_is_told_before_anything_else",
        text="the same message, once a model has been fetched",
    ),
)
