"""The HTML report: what a stored run found, in tables and Plotly figures. Reads the store, computes no science."""
