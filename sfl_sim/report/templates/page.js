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

// The title of a column of numbers sorts the rows by it, and once more the other way round.
document.querySelectorAll("table.numbers").forEach((table) => [...table.tHead.rows[0].cells].forEach((title, place) => {
  const body = table.tBodies[0], number = (row) => parseFloat(row.cells[place].dataset.order);
  if (body.rows.length < 3 || ![...body.rows].some((row) => !isNaN(number(row)))) return;
  const sort = () => {
    const way = title.ariaSort === "ascending" ? "descending" : "ascending", sign = way === "ascending" ? 1 : -1;
    const rank = (row) => isNaN(number(row)) ? Infinity : sign * number(row);  // what is unknown comes last
    table.querySelectorAll("thead th").forEach((other) => { other.ariaSort = null; });
    title.ariaSort = way;
    body.append(...[...body.rows].sort((a, b) => rank(a) < rank(b) ? -1 : Number(rank(a) > rank(b))));
  };
  title.tabIndex = 0;
  title.classList.add("sorts");
  title.addEventListener("click", sort);
  title.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
}));

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
