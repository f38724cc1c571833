"""Serving: requests come to a trained model."""
