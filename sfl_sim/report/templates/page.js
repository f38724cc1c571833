const plots = [...document.querySelectorAll(".js-plotly-plot")];

// A finger on a figure scrolls the page.
if (matchMedia("(pointer: coarse)").matches) plots.forEach((plot) => Plotly.relayout(plot, { dragmode: false }));

// Figures that were drawn while a section was folded take its width when it is opened, by hand or by a link to it.
const sections = [...document.querySelectorAll("section > details")];
sections.forEach((folded) => folded.addEventListener("toggle", () => {
  if (folded.open) folded.querySelectorAll(".js-plotly-plot").forEach((plot) => Plotly.Plots.resize(plot));
}));
const unfold = () => {
  const target = sections.find((folded) => folded.parentElement.id === location.hash.slice(1));
  if (target) target.open = true;
};
addEventListener("hashchange", unfold);
document.querySelector("nav").addEventListener("click", () => setTimeout(unfold));  // again, where the hash stays
unfold();

// Plotly draws for the screen's width; on paper it must draw for the sheet's, at once (Plotly's own resizing waits).
addEventListener("beforeprint", () => {
  document.body.classList.add("printing");
  sections.forEach((folded) => { folded.open = true; });
  plots.forEach((plot) => Plotly.relayout(plot, { width: plot.clientWidth }));
});
addEventListener("afterprint", () => {
  document.body.classList.remove("printing");
  plots.forEach((plot) => Plotly.relayout(plot, { width: null, autosize: true }));
});
