"""Scenario files as text: how values are read, where keys are, and what is refused."""

import os
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sfl_sim.errors import ScenarioError
from sfl_sim.scenario import yaml_text

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E6", 1e6),
        ("-2.5e3", -2500.0),
        (".5e+1", 5.0),
        ("1.e2", 100.0),
        ("0.05", 0.05),
        ("7", 7),
        ("1_000", 1000),
        ("0", 0),
        ("00.5", 0.5),
        ("0x10", 16),
        ("1e", "1e"),
        ("e3", "e3"),
        ("1e3x", "1e3x"),
        ("'1e3'", "1e3"),
        ("2024-01-31", "2024-01-31"),
        ("2024-13-45", "2024-13-45"),
        ("", None),
        ("[1, a]", [1, "a"]),
        ("[true, False]", [True, False]),
        ("[off, on, yes, No, y]", ["off", "on", "yes", "No", "y"]),
    ],
)
def test_values_are_read_as_users_mean_them(text, value):
    read = yaml_text.read_value(text)

    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", ["010", "-007", "0_1", "1:40", "+1:40:00", "1:40.5"])
def test_numbers_that_look_decimal_and_are_octal_or_sexagesimal_are_refused(text):
    with pytest.raises(ScenarioError, match=f"{re.escape(text)} is not read as a decimal number"):
        yaml_text.read_value(f"{{rounds: {text}}}")


@given(JSON)
@example({"\x85": "größe"})
@settings(max_examples=80)
def test_what_is_written_reads_back_equal(value):
    assert yaml_text.read_value(yaml_text.write(value)) == value


@given(st.from_regex(r"[-+]?[0-9]{1,3}\.?[0-9]{0,3}[eE][-+]?[0-9]{1,2}", fullmatch=True))
@settings(max_examples=50)
def test_only_quotes_make_text_of_a_number(number):
    assert yaml_text.read_value(number) == float(number)
    assert yaml_text.read_value(yaml_text.write(number)) == number


def test_every_key_and_list_item_has_its_line(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("# how fast\ntrain:\n  lr: 0.1\ngrid:\n- model.cut: [1]\n- model.cut:\n  - 2\n  - 3\n")

    values, places = yaml_text.read(file)

    assert values == {"train": {"lr": 0.1}, "grid": [{"model.cut": [1]}, {"model.cut": [2, 3]}]}
    assert {key: place.line for key, place in places.keys.items()} == {
        "train": 2,
        "train.lr": 3,
        "grid": 4,
        "grid.0": 5,
        "grid.0.model.cut": 5,
        "grid.0.model.cut.0": 5,
        "grid.1": 6,
        "grid.1.model.cut": 6,
        "grid.1.model.cut.0": 7,
        "grid.1.model.cut.1": 8,
    }
    assert {place.file for place in places.keys.values()} == {str(file)}


def test_anchors_may_be_shared_and_overridden(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}\nc: *a\n")

    assert yaml_text.read(file)[0] == {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}, "c": {"x": 1, "y": 2}}


LAUGHS = "a0: &a0 [lol]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 9))
TOWERS = "a0: &a0 1\n" + "".join(f"a{n}: &a{n} [[[[[*a{n - 1}]]]]]\n" for n in range(1, 9))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: &a\n  b: *a\n", "2: is not YAML: an alias within what it stands for (column 6)"),
        (LAUGHS, "6: is too much: more than 100000 keys and values"),
        (MERGES, "6: is too much: more than 100000 keys and values"),
        (TOWERS, "8: is too much: more than 32 lists and mappings within one another"),
        ("[" * 500_000, "1: is too much: more than 32 lists and mappings within one another (column 33)"),
        ("- " * 5000, "1: is too much: more than 32 lists and mappings within one another (column 65)"),
        ("seed: " + "9" * 101, "1: is too much: more than 100 characters of a number (column 7)"),
        ("seed: 1" + ":59" * 50_000, "1: is too much: more than 100 characters of a number (column 7)"),
        ('name: "\\ud800"', "1: is not YAML: the character '\\ud800' is not allowed (column 7)"),
        ('name: "a\\0"', "1: is not YAML: the character '\\x00' is not allowed (column 7)"),
        ("a: !!timestamp x", "1: is not YAML: cannot be read as timestamp (column 4)"),
        ("a: !!bool maybe", "1: is not YAML: cannot be read as bool (column 4)"),
        ("a: !!python/object/apply:os.system [exit]", "1: is not YAML: could not determine a constructor for the tag"),
    ],
    ids=range(13),
)
def test_bombs_and_what_no_file_can_hold_are_refused(tmp_path, text, problem):
    file = tmp_path / "a.yaml"
    file.write_text(text)

    with pytest.raises(ScenarioError) as caught:
        yaml_text.read(file)

    assert str(caught.value).startswith(f"{file}:{problem}")


def test_as_much_as_is_allowed_is_read(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("[" * 31 + "1" + "]" * 31)

    assert "1" in str(yaml_text.read(file)[0])


def test_files_beyond_the_limit_and_what_is_no_file_are_refused_at_once(tmp_path):
    huge, pipe = tmp_path / "huge.yaml", tmp_path / "pipe"
    with huge.open("wb") as file:
        file.truncate(100_000_000)
    os.mkfifo(pipe)

    with pytest.raises(
        ScenarioError, match=r"huge.yaml: is too large \(found '100000000 bytes'; allowed: at most 1000000"
    ):
        yaml_text.read(huge)
    with pytest.raises(ScenarioError, match=r"pipe: cannot be read: Is no regular file"):
        yaml_text.read(pipe)


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path, mark):
    file = tmp_path / "a.yaml"
    file.write_bytes(mark + "name: größe\r\nseed: 1\r\n".encode())

    values, places = yaml_text.read(file)

    assert values == {"name": "größe", "seed": 1}
    assert places.of("seed").line == 2


@pytest.mark.parametrize(
    ("content", "line", "key", "problem"),
    [
        (b"seed: 1\ntrain:\n\tlr: 1\n", 3, None, "is not YAML: found a tab, indent with spaces (column 1)"),
        (
            b"seed: 1\ntrain: {lr: 1\n",
            3,
            None,
            "is not YAML: expected ',' or '}', but got '<stream end>' (column 1)",
        ),
        (b"name: a: b\n", 1, None, "is not YAML: mapping values are not allowed here (column 8)"),
        (b"seed: 1\nname: *gone\n", 2, None, "is not YAML: found undefined alias 'gone' (column 7)"),
        (b"seed: 1\n---\nseed: 2\n", 2, None, "is not YAML: but found another document (column 1)"),
        (b"a: 1\nname: x\x07\n", 2, None, "is not YAML: the character '\\x07' is not allowed (column 8)"),
        (b"a: 1\nb: 0x_\n", 2, None, "is not YAML: invalid literal for int() with base 16: '' (column 4)"),
        (b"seed: 1\nname: gr\xf6sse\n", 2, None, "is not UTF-8 text (found b'\\xf6')"),
        (b"train:\n  lr: 1\n  rounds: 3\n  lr: 2\n", 4, "train.lr", "is given twice, first in line 2"),
        (b"grid:\n- {a: 1, a: 2}\n", 2, "grid.0.a", "is given twice, first in line 2"),
        (b"train: {lr: 1}\ntrain.lr: 2\n", 2, "train.lr", "is given twice, first in line 1"),
    ],
)
def test_a_file_that_is_not_clean_yaml_is_refused_with_its_line(tmp_path, content, line, key, problem):
    file = tmp_path / "a.yaml"
    file.write_bytes(content)

    with pytest.raises(ScenarioError) as caught:
        yaml_text.read(file)

    assert str(caught.value) == ": ".join(filter(None, [f"{file}:{line}", key, problem]))


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ScenarioError) as caught:
        yaml_text.read(tmp_path / "gone.yaml")
    assert str(caught.value) == f"{tmp_path / 'gone.yaml'}: cannot be read: No such file or directory"

    with pytest.raises(ScenarioError) as caught:
        yaml_text.read(tmp_path)
    assert str(caught.value) == f"{tmp_path}: cannot be read: Is a directory"
