// The one table: sorted by its headings, filtered with the page, its first rows until a reader asks for all, stacked
// into cards where it is wider than the page, and as CSV.
const FIRST_ROWS = 25;
const tables = new Map();

function tagsOf(heads, row) {
  if (heads[0] === "case") return stored.tags[stored.cases[row.cells[0].textContent]] || [];
  return stored.axes.map((name) => {
    const place = heads.indexOf(name);
    return place < 0 || place >= row.cells.length ? "" : row.cells[place].textContent;
  });
}

function known(row, heads) {
  return { row, tags: tagsOf(heads, row), text: row.textContent.toLowerCase() };
}

// Numbers by value, other texts after them; what has none comes last in either direction.
function keyOf(cell) {
  const text = cell ? cell.textContent.trim() : "";
  const number = /^[+-]?[\d,]*\.?\d+(e[+-]?\d+)?/i.exec(text);
  if (!text || text === "-") return [2, 0, ""];
  return number ? [0, Number(number[0].replaceAll(",", "")), text] : [1, 0, text];
}

function compared(a, b, direction) {
  if (a[0] !== b[0] && (a[0] === 2 || b[0] === 2)) return a[0] - b[0];
  return direction * (a[0] - b[0] || a[1] - b[1] || a[2].localeCompare(b[2], "en", { numeric: true }));
}

function sortBy(own, place) {
  const heads = [...own.table.tHead.rows[0].cells];
  const direction = heads[place].getAttribute("aria-sort") === "ascending" ? -1 : 1;
  heads.forEach((head, i) => (i === place ? head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending") : head.removeAttribute("aria-sort")));
  const keys = new Map(own.rows.map((one) => [one, keyOf(one.row.cells[place])]));
  own.rows.sort((a, b) => compared(keys.get(a), keys.get(b), direction));
  own.table.tBodies[0].append(...own.rows.map((one) => one.row));
  showRows(own);
}

function showRows(own) {
  const found = own.rows.filter((one) => fits(one.tags) && says(one.text));
  const shown = new Set(own.all ? found : found.slice(0, FIRST_ROWS));
  for (const one of own.rows) one.row.hidden = !shown.has(one);
  own.more.hidden = shown.size === found.length;
  own.more.textContent = `Show all ${found.length} rows`;
  own.none.hidden = found.length > 0;
  return found.length;
}

function stack(own) {
  own.div.classList.remove("stacked");
  if (own.table.offsetWidth <= own.div.clientWidth) return;
  if (!own.labelled) {
    const heads = own.heads;
    for (const { row } of own.rows) [...row.cells].forEach((cell, i) => { if (cell.colSpan === 1) cell.dataset.label = heads[i]; });
    own.labelled = true;
  }
  own.div.classList.add("stacked");
}

function makeTable(div) {
  const table = div.querySelector("table");
  const heads = [...table.tHead.rows[0].cells];
  const own = { div, table, heads: heads.map((cell) => cell.textContent), all: false };
  own.more = element("button", { type: "button", className: "more", hidden: true });
  own.more.addEventListener("click", () => { own.all = true; showRows(own); });
  own.none = element("p", { className: "note", textContent: "No row fits the search and the filters.", hidden: true });
  const csv = element("button", { type: "button", className: "csv", textContent: "CSV" });
  csv.setAttribute("aria-label", `CSV of ${table.caption.textContent}`);
  csv.addEventListener("click", () => download(div.id.replace("table-", ""), tableCsv(own)));
  heads.forEach((head, place) => {
    const button = element("button", { type: "button", className: "sort" }, ...head.childNodes);
    button.addEventListener("click", () => sortBy(own, place));
    head.append(button);
  });
  div.append(own.none, element("div", { className: "below" }, own.more, csv));
  tables.set(div.id, own);
  readRows(own);
}

function readRows(own) {
  const heads = own.heads.map((name) => name.toLowerCase());
  own.labelled = false;
  own.rows = [...own.table.tBodies[0].rows].map((row) => known(row, heads));
  showRows(own);
}

function tableCsv(own) {
  const found = own.rows.filter((one) => fits(one.tags) && says(one.text));
  const cells = ({ row }) => [...row.cells].map((cell) => (/^[+-]?\d+(\.\d+)?$/.test(cell.textContent) ? Number(cell.textContent) : cell.textContent));
  return [own.heads, ...found.map(cells)];
}

// A row that a link leads to is shown, whatever the filters say.
function showLinkedRow() {
  const row = document.getElementById(location.hash.slice(1));
  if (!row || row.tagName !== "TR") return;
  row.hidden = false;
  row.scrollIntoView({ block: "center" });
}
