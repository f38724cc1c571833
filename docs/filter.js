/* A filter for the tables inside an element of class "filtered": rows without all the words are hidden, and headings
   and folded sections whose rows are all hidden, too. A word may also stand in the heading above the table. Needs no
   network; without JavaScript everything is there. */
for (const scope of document.querySelectorAll(".filtered")) {
  const rows = [];
  let above = "";
  const groups = []; // a heading with the blocks and rows down to the next one
  for (const element of scope.querySelectorAll("h2, h3, p, tbody tr")) {
    if (element.matches("h2, h3")) {
      above = element.textContent.replace("¶", "").trim();
      groups.push({ level: element.tagName, blocks: [element], rows: [] });
    } else if (element.matches("tr")) {
      const name = `${above}.${element.cells[0].textContent.trim()}`;
      const row = { element, text: `${name} ${element.textContent}`.toLowerCase() };
      rows.push(row);
      groups.at(-1)?.rows.push(row);
      const table = element.closest("table");
      if (groups.length && !groups.at(-1).blocks.includes(table)) groups.at(-1).blocks.push(table);
    } else if (groups.length && !element.closest("table")) groups.at(-1).blocks.push(element);
  }
  const sections = [...scope.querySelectorAll("details")];
  const input = Object.assign(document.createElement("input"), { type: "search", placeholder: scope.dataset.ask });
  input.setAttribute("aria-label", scope.dataset.ask);
  const count = document.createElement("output");
  const bar = document.createElement("div");
  bar.className = "filter";
  bar.append(input, count);
  scope.prepend(bar);
  const apply = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) row.element.hidden = !words.every((word) => row.text.includes(word));
    const shown = (part) => part.some((row) => !row.element.hidden);
    groups.forEach((group, at) => {
      const next = groups.findIndex((other, n) => n > at && other.level <= group.level);
      const inside = groups.slice(at, next < 0 ? undefined : next).flatMap((other) => other.rows);
      for (const block of group.blocks) block.hidden = words.length > 0 && !shown(inside);
    });
    for (const section of sections) {
      const own = rows.filter((row) => section.contains(row.element));
      section.hidden = !shown(own);
      section.open = words.length > 0 && shown(own);
    }
    count.textContent = `${rows.filter((row) => !row.element.hidden).length} of ${rows.length}`;
  };
  input.addEventListener("input", apply);
  apply();
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const section = target?.closest("details");
    if (!section) return;
    section.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();
}
