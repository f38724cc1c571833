"""Figures as functions of stored records."""
