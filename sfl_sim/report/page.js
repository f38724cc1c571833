const plots = () => document.querySelectorAll(".js-plotly-plot");
// A finger on a figure scrolls the page.
if (matchMedia("(pointer: coarse)").matches) plots().forEach((plot) => Plotly.relayout(plot, { dragmode: false }));
// Plotly draws for the screen's width; before printing, let it draw for the sheet's.
const fit = () => plots().forEach((plot) => Plotly.Plots.resize(plot));
addEventListener("beforeprint", () => { document.body.classList.add("printing"); fit(); });
addEventListener("afterprint", () => { document.body.classList.remove("printing"); fit(); });
