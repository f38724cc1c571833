"""Everything that `import sfl_sim` gives is documented."""

import inspect

import pytest

import sfl_sim


@pytest.mark.parametrize("name", sfl_sim.__all__)
def test_a_public_name_and_its_public_members_say_what_they_are(name):
    public = getattr(sfl_sim, name)
    assert (inspect.getdoc(public) or "").strip()
    own = {key: member for key, member in vars(public).items() if not key.startswith("_")}
    for key, member in own.items():
        if inspect.isfunction(member) or isinstance(member, property | classmethod) or hasattr(member, "func"):
            assert inspect.getdoc(member), f"{name}.{key}"


@pytest.mark.parametrize("name", [n for n in sfl_sim.__all__ if inspect.isfunction(getattr(sfl_sim, n))])
def test_every_argument_of_a_public_function_is_told(name):
    function = getattr(sfl_sim, name)
    missing = [each for each in inspect.signature(function).parameters if each not in inspect.getdoc(function)]
    assert not missing
