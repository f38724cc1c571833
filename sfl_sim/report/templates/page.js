const plots = [...document.querySelectorAll(".js-plotly-plot")];

// A finger on a figure scrolls the page.
if (matchMedia("(pointer: coarse)").matches) plots.forEach((plot) => Plotly.relayout(plot, { dragmode: false }));

// Plotly draws for the screen's width; on paper it must draw for the sheet's, at once (Plotly's own resizing waits).
addEventListener("beforeprint", () => {
  document.body.classList.add("printing");
  plots.forEach((plot) => Plotly.relayout(plot, { width: plot.clientWidth }));
});
addEventListener("afterprint", () => {
  document.body.classList.remove("printing");
  plots.forEach((plot) => Plotly.relayout(plot, { width: null, autosize: true }));
});
