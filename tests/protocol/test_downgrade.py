"""Results that give way to a small window, the last one first."""

from __future__ import annotations

from hypothesis import given, strategies as st

from greenroom.protocol import CUT_RESULT_CHARS, TOO_SMALL, fitted_results, is_note

CUT = "x" * CUT_RESULT_CHARS + "…"
LONG = "x" * 2_000


def within(room):
    return lambda texts: sum(map(len, texts)) <= room


def test_results_that_fit_stay_as_they_are():
    assert fitted_results([LONG, "ok"], within(2_002)) == (LONG, "ok")


def test_a_shrinking_window_takes_the_last_result_first_and_step_by_step():
    steps: list[tuple[str, ...]] = []
    for room in range(6_000, -1, -1):
        fitted = fitted_results([LONG, LONG, LONG], within(room))
        assert fitted is not None
        if not steps or steps[-1] != fitted:
            steps.append(fitted)
    smaller = [CUT, TOO_SMALL, "Error", ""]
    assert steps == [
        (LONG, LONG, LONG),
        *[(LONG, LONG, last) for last in smaller],
        *[(LONG, middle, "") for middle in smaller],
        *[(first, "", "") for first in smaller],
    ]


def test_nothing_fits_where_even_nothing_is_too_much():
    assert fitted_results([LONG, LONG], lambda texts: False) is None


def test_a_result_is_never_replaced_by_something_longer():
    seen = []

    def fits(texts):
        seen.append(tuple(texts))
        return False

    fitted_results(["ok", "fine!!"], fits)
    assert seen == [("ok", "fine!!"), ("ok", "Error"), ("ok", ""), ("", "")]


@given(st.lists(st.text(max_size=700), max_size=4), st.integers(0, 2_000))
def test_what_fits_fits_and_no_later_result_could_have_stayed_longer(results, room):
    fitted = fitted_results(results, within(room))
    assert fitted is not None
    assert within(room)(fitted)
    changed = [a != b for a, b in zip(results, fitted, strict=True)]
    if True in changed:
        first = changed.index(True)
        # Everything behind the first change has given all it has.
        assert all(text == "" for text in fitted[first + 1 :])


def test_the_short_texts_say_nothing_of_the_result():
    assert [is_note(text) for text in (CUT, TOO_SMALL, "Error", "", "ok")] == [
        False,
        True,
        True,
        True,
        False,
    ]
