"""Errors that a user reads in one line."""

import sysconfig

import pytest

from sfl_sim.errors import ScenarioError, own_place


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("/mine/code.py", ", at /mine/code.py:1"),
        ("<stdin>", ", at <stdin>:1"),
        ("pyarrow/_parquet.pyx", ""),
        (f"{sysconfig.get_path('purelib')}/a.py", ""),
        (f"{sysconfig.get_path('data')}-of-mine/a.py", f", at {sysconfig.get_path('data')}-of-mine/a.py:1"),
    ],
)
def test_compiled_code_of_a_package_is_no_code_of_one_s_own(file, place):
    with pytest.raises(ZeroDivisionError) as raised:
        exec(compile("1 / 0", file, "exec"))
    assert own_place(raised.value.with_traceback(raised.tb.tb_next)) == place


def test_what_a_library_says_of_a_binary_file_is_cut():
    assert len(str(ScenarioError("could not convert " + "PK\x03" * 3000, key="convert"))) < 900


def test_the_nearest_word_is_found_in_any_case():
    assert ScenarioError("unknown", found="CIFAR10", allowed=["mnist", "cifar10"]).nearest == "cifar10"
    assert ScenarioError("unknown", found="adapter.a", allowed=["q", "Adapter.A"]).nearest == "Adapter.A"


def test_of_many_allowed_words_those_are_shown_that_are_near_or_have_such_a_part():
    error = ScenarioError("unknown", found="table3", allowed=[f"n{n}/m" for n in range(70)] + ["a/table3", "b/table"])
    assert error.nearest == "a/table3"
    assert "allowed: a/table3, b/table, … (72 in all)" in str(error)
