"""The HTML report: what stored runs found, in a table and Plotly figures. It computes no science."""
