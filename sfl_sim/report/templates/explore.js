// What was tried, one axis at a time: all numbers are texts of the page's own data; only which is the least is asked.
(() => {
  const tried = JSON.parse(document.getElementById("tried").textContent);
  const form = document.getElementById("explore"), table = document.getElementById("explored");
  const make = (tag, text) => Object.assign(document.createElement(tag), { textContent: text ?? "" });
  const choose = (title, names, at) => {
    const label = make("label", title + " "), select = make("select");
    select.append(...names.map((name, i) => Object.assign(make("option", name), { value: i })));
    select.value = at;
    label.append(select);
    form.append(label);
    return select;
  };
  const view = choose("Compare", tried.axes.map((axis) => axis.title), tried.along);
  const pins = tried.axes.map((axis) => choose(axis.title, axis.names, axis.shown));
  const link = form.appendChild(make("a", "Link to this view"));
  const selects = [view, ...pins];
  const show = () => {
    const along = Number(view.value), axis = tried.axes[along];
    pins.forEach((pin, i) => { pin.parentElement.hidden = i === along || pin.length < 2; });
    const rows = tried.rows.filter((row) => pins.every((pin, i) => i === along || row.at[i] === Number(pin.value)));
    rows.sort((a, b) => a.at[along] - b.at[along]);
    const most = Math.max(...rows.map((row) => row.round_s));
    const least = rows.reduce((a, b) => (b.round_s < a.round_s ? b : a), rows[0]);
    table.tBodies[0].replaceChildren(...rows.map((row) => {
      const line = make("tr"), heading = make("th", axis.names[row.at[along]]), bar = make("td");
      heading.scope = "row";
      if (axis.chosen && row.texts[0] === least.texts[0]) heading.append(make("small", "best of those tried"));
      bar.className = "parts";
      row.parts.forEach((part, i) => {
        const piece = bar.appendChild(make("i"));
        piece.title = `${tried.parts[i].name}: ${part.text}`;
        piece.style.width = `${100 * part.s / most}%`;
        piece.style.background = tried.parts[i].colour;
      });
      line.append(heading, bar, ...row.texts.map((text) => make("td", text)));
      return line;
    }));
    table.tHead.rows[0].cells[0].textContent = axis.title;
    link.href = `#explore=${selects.map((select) => select.value).join(",")}`;
  };
  const restore = () => {
    const given = /^#explore=([\d,]+)$/.exec(location.hash)?.[1].split(",") ?? [];
    selects.forEach((select, i) => { if (select.options[given[i]]) select.value = given[i]; });
    show();
    if (given.length) form.scrollIntoView();
  };
  form.addEventListener("change", show);
  addEventListener("hashchange", restore);
  restore();
})();
