"use strict";
for (const section of document.querySelectorAll("section.landscape")) {
  const table = section.querySelector("table"), body = [...table.tBodies].at(-1), rows = [...body.rows];
  const controls = section.querySelector(".controls");
  const text = controls.querySelector("input"), state = controls.querySelector("select"), count = controls.querySelector("output");
  controls.hidden = false;

  const filter = () => {
    const words = text.value.toLowerCase();
    for (const row of rows) {
      row.hidden = !row.textContent.toLowerCase().includes(words) || (state.value && row.dataset.state !== state.value);
    }
    count.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length} trials`;
  };
  text.addEventListener("input", filter);
  state.addEventListener("change", filter);

  [...table.tHead.rows[0].cells].forEach((head, index) => {
    // Not a real button: Chromium leaves those out of the header when it repeats it on printed pages.
    const button = document.createElement("span");
    button.role = "button";
    button.tabIndex = 0;
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("keydown", event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      button.click();
    });
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending", sign = down ? -1 : 1;
      for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => row.cells[index].dataset.order;
      const number = value => value === "inf" ? Infinity : Number(value);
      const compare = head.classList.contains("number")
        ? (a, b) => number(a) - number(b) || 0 : (a, b) => a.localeCompare(b, undefined, { numeric: true });
      // Missing values come last either way.
      const sorted = rows.toSorted((a, b) => !key(a) - !key(b) || sign * compare(key(a), key(b)));
      body.append(...sorted);
    });
  });
}
const folded = [...document.querySelectorAll("details")];
addEventListener("beforeprint", () => folded.forEach(each => { each.dataset.open = each.open; each.open = true; }));
addEventListener("afterprint", () => folded.forEach(each => { each.open = each.dataset.open === "true"; }));
