"""The flight recorder is cheap; what it keeps is tested in test_inquiry.py."""

import time

from hpcreduce.runtime.recorder import SHORT, Recorder, short

GENEROUS = 3e-6
"""Seconds per call: three times what it may cost, so that a busy machine does not fail."""


def test_costs_less_than_anybody_would_notice():
    recorder = Recorder()
    begin, complete = recorder.begin, recorder.complete

    def note():  # as deep as the calls of this package are
        complete(begin(7, "allreduce(op sum)"))

    def seconds(calls=200):
        start = time.perf_counter()
        for _ in range(calls):
            note()
        return (time.perf_counter() - start) / calls

    best = min(seconds() for _ in range(300))
    print(f"recorder: {1e6 * best:.2f} us per call")
    assert best < GENEROUS


def test_long_descriptions_show_what_is_asked_for():
    text = f"f({'; '.join(map(str, range(1000)))})"
    assert short("f(1; 2)", around=5) == "f(1; 2)"
    for place in (0, 10, 200, 299, 300, 2000, len(text) - 2):
        assert len(short(text, place)) <= SHORT and text[place] in short(text, place)
    assert " ... 421; 422; " in short(text, around=text.index("421; ") + 1)
