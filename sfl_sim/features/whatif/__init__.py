"""What-if: the time of rounds at every combination of what varies, without training."""
