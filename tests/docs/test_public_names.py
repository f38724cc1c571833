"""Everything that `import sfl_sim` gives is documented."""

import inspect

import pytest

import sfl_sim


@pytest.mark.parametrize("name", sfl_sim.__all__)
def test_a_public_name_and_its_public_members_say_what_they_are(name):
    public = getattr(sfl_sim, name)
    assert (inspect.getdoc(public) or "").strip()
    for key, member in vars(public).items():
        if key.startswith("_"):
            continue
        if inspect.isfunction(member) or isinstance(member, property | classmethod) or hasattr(member, "func"):
            assert inspect.getdoc(member), f"{name}.{key}"


@pytest.mark.parametrize("name", [n for n in sfl_sim.__all__ if inspect.isfunction(getattr(sfl_sim, n))])
def test_every_argument_of_a_public_function_is_told(name):
    function = getattr(sfl_sim, name)
    assert [key for key in inspect.signature(function).parameters if key not in inspect.getdoc(function)] == []
