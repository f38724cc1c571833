"""What the small model of lora/pretrain reads."""

from research.lora.others import without


def test_the_speeches_of_some_roles_are_left_out():
    play = "ROMEO:\nAy me.\n\nJULIET:\nO Romeo,\nRomeo!\n\nROMEO:\nShall I hear more?"
    assert without(play, ["ROMEO"]) == "JULIET:\nO Romeo,\nRomeo!"
    assert without(play, []) == play
