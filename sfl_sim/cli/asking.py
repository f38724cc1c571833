"""Commands that ask what would be if: by the clock alone, without training."""
