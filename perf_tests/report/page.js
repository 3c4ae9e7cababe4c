"use strict";
// What the page holds, and texts out of it. Without these programs its text and tables are complete.
const stored = JSON.parse(document.getElementById("data").textContent);

// Texts of figures are escaped for Plotly, which reads some HTML.
const decoded = (text) => new DOMParser().parseFromString(text, "text/html").documentElement.textContent;

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// A spreadsheet would compute a text that begins like a formula.
function csvCell(value) {
  const text = value === undefined || value === null ? "" : String(value);
  const plain = typeof value === "string" && /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? "'" + text : text;
  return /[",\n\r]/.test(plain) ? '"' + plain.replaceAll('"', '""') + '"' : plain;
}

function download(name, rows) {
  const text = rows.map((row) => row.map(csvCell).join(",")).join("\n") + "\n";
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name + ".csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Four significant digits, never as a power of ten.
const significant = (value) => value.toLocaleString("en", { maximumSignificantDigits: 4, useGrouping: false });

// What the reader asked for: a choice for each axis, and words that a case's name must have.
const chosen = Object.fromEntries(stored.axes.map((name) => [name, ""]));
let words = [];

// A point or row without a tag passes that filter.
const fits = (tags) => stored.axes.every((name, i) => !chosen[name] || !tags[i] || tags[i] === chosen[name]);
const says = (text) => words.every((word) => text.includes(word));

function look(text) {
  words = text.toLowerCase().split(/\s+/).filter(Boolean);
}

// Filters can be given in the address, to link to a view: report.html#?size=small&search=forward
function readAddress() {
  const [, query] = location.hash.split("?");
  for (const [name, value] of new URLSearchParams(query || "")) {
    if (name === "search") look(value);
    else if (name in chosen) chosen[name] = value;
  }
}

function offerFilters(refresh) {
  const form = document.getElementById("filters");
  const search = document.getElementById("search");
  const selects = [...form.querySelectorAll("select")];
  form.hidden = false;
  search.value = words.join(" ");
  for (const select of selects) {
    select.value = chosen[select.dataset.filter];
    select.addEventListener("change", () => { chosen[select.dataset.filter] = select.value; refresh(); });
  }
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { look(search.value); refresh(); }, 150);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    for (const name in chosen) chosen[name] = "";
    look("");
    setTimeout(refresh, 0);
  });
}

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
  // The first screen stays what it says.
  const found = own.rows.filter((one) => own.div.closest("#answer") || (fits(one.tags) && says(one.text)));
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
  const fold = row && row.closest("details");
  if (fold) fold.open = true;
  if (!row || row.tagName !== "TR") return;
  row.hidden = false;
  row.scrollIntoView({ block: "center" });
}

// Labels of a logarithmic axis: at 1, 2 and 5 of each decade, or at decades where those are too many.
const MOST_TICKS = 12;
const UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]];

function tickLabel(value) {
  const [factor, unit] = UNITS.find(([least]) => value >= least) || [1, ""];
  return Number((value / (unit === "k" ? 1e3 : factor)).toPrecision(3)) + unit;
}

// Empty where fewer than three fit: within a decade Plotly finds better places.
function logTicks(values) {
  const positive = values.filter((value) => value > 0 && Number.isFinite(value));
  if (!positive.length) return {};
  let low = positive.reduce((a, b) => Math.min(a, b)), high = positive.reduce((a, b) => Math.max(a, b));
  if (low === high) [low, high] = [low / 10, high * 10];
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const apart = Math.ceil((last - first + 1) / MOST_TICKS);
  for (const [digits, step] of [[[1, 2, 5], 1], [[1], 1], [[1], apart]]) {
    const ticks = [];
    for (let power = first; power <= last; power += step) ticks.push(...digits.map((digit) => Number(`${digit}e${power}`)));
    const inside = ticks.filter((value) => value >= low && value <= high);
    if (inside.length > MOST_TICKS) continue;
    if (inside.length < 3) break;
    const shown = ticks.filter((value, i) => (ticks[i + 1] || high * 2) > low && (ticks[i - 1] || 0) < high);
    return { tickvals: shown, ticktext: shown.map(tickLabel) };
  }
  return {};
}

// Draws the figures as they come into view, with the points that the filters leave.
const xs = (own) => own.x || own.y.map((_, i) => own.x_from + i);
const figures = new Map(stored.figures.map((figure) => [
  figure.name, { ...figure, data: figure.data.map((own) => ({ ...stored.looks[own.look], ...own, x: xs(own) })) },
]));
const drawn = new Set();
const painters = new Map();

// Points with equal texts or tags share one.
const of = (values, i) => values[values.length === 1 ? 0 : i];

function kept(trace) {
  const name = trace.name.toLowerCase();
  const fit = (i) => fits(stored.tags[of(trace.tags, i)]) && (!words.length || says(`${name} ${of(trace.text, i)} ${trace.group}`.toLowerCase()));
  const places = trace.x.map((_, i) => i).filter(fit);
  const some = (values) => places.map((i) => of(values, i));
  const filtered = { ...trace, ...Object.fromEntries(["x", "y", "text", "tags"].map((one) => [one, some(trace[one])])) };
  if (trace.base) filtered.base = some(trace.base);
  if (trace.error_y) {
    const bars = { array: some(trace.error_y.array), arrayminus: some(trace.error_y.arrayminus) };
    filtered.error_y = { ...trace.error_y, ...bars };
  }
  return filtered;
}

function traces(figure) {
  const found = figure.data.map(kept).filter((trace) => trace.x.length);
  return figure.picks_one ? found.filter((trace) => trace.group === figure.picked) : found;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function axisOf(own, data, name) {
  const values = data.flatMap((trace) => {
    const bars = name === "y" && trace.error_y;
    return bars ? trace.y.flatMap((y, i) => [y - bars.arrayminus[i], y + bars.array[i]]) : trace[name];
  });
  const ticks = own.type === "log" && !own.tickvals ? logTicks(values) : {};
  return { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--faint"), ...own, ...ticks };
}

// An axis of times that does not begin at zero says so: a difference looks larger on it than it is.
const ABOVE_ZERO = "<br>(the axis starts above 0)";
function sayAboveZero(div, axis) {
  if (axis.type || !(div.layout.yaxis.range[0] > 0)) return;
  Plotly.relayout(div, { "yaxis.title.text": axis.title.text + ABOVE_ZERO });
}

function commonLayout() {
  return {
    font: { color: colour("--text"), family: "system-ui, sans-serif", size: 12 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { align: "left" },
    margin: { l: 56, r: 12, t: 30, b: 48 },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--line"), activecolor: colour("--faint") },
  };
}

function layoutOf(figure, data, width) {
  const listed = data.filter((trace) => trace.showlegend);
  const longest = Math.max(8, ...listed.map((trace) => trace.name.length));
  const rows = Math.ceil(listed.length / Math.max(1, Math.floor(width / (7 * longest + 70))));
  const { xaxis, yaxis, shapes } = figure.layout;
  return {
    ...figure.layout,
    ...commonLayout(),
    xaxis: axisOf(xaxis, data, "x"),
    yaxis: axisOf(yaxis, data, "y"),
    shapes: shapes.map((one) => ({ ...one, label: { ...one.label, font: { color: colour("--faint"), size: 11 } } })),
    height: 360 + (listed.length > 1 ? 19 * rows : 0),
    ...(xaxis.type === "category" && !data.some((trace) => trace.type === "bar") ? { scattermode: "group" } : {}),
    showlegend: listed.length > 1,
    legend: { orientation: "h", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom", itemwidth: 48, maxheight: 1 },
    uirevision: figure.picked || "same",
  };
}

const PLOT_OPTIONS = {
  responsive: true, displaylogo: false, showSendToCloud: false, modeBarButtonsToRemove: ["select2d", "lasso2d"],
};

function paint(div) {
  const figure = figures.get(div.id.replace("plot-", ""));
  if (figure.picks_one) offerCases(div, figure);
  const data = traces(figure);
  const shown = Plotly.react(div, data, layoutOf(figure, data, div.clientWidth), PLOT_OPTIONS);
  shown.then(() => sayAboveZero(div, figure.layout.yaxis));
}

function draw(div) {
  (painters.get(div.id) || paint)(div);
  for (const button of div.querySelectorAll(".modebar-btn")) button.setAttribute("aria-label", button.dataset.title);
  drawn.add(div);
}

// A choice above a figure that shows one case at a time.
function offerChoice(div, names, value, pick) {
  let select = div.previousElementSibling;
  if (select.tagName !== "SELECT") {
    select = element("select", { className: "pick" });
    select.setAttribute("aria-label", "case");
    select.addEventListener("change", () => pick(select.value));
    div.before(select);
  }
  select.replaceChildren(...names.map(([key, name]) => element("option", { value: key, textContent: name })));
  select.value = value;
}

function offerCases(div, figure) {
  const shown = figure.data.map(kept).filter((trace) => trace.x.length);
  const names = [...new Set(shown.map((trace) => trace.group))];
  if (!names.includes(figure.picked)) figure.picked = names[0];
  offerChoice(div, names.map((name) => [name, decoded(name)]), figure.picked, (name) => { figure.picked = name; draw(div); });
}

function figureCsv(figure) {
  const title = (axis) => decoded(axis.title.text);
  const rows = [["series", title(figure.layout.xaxis), title(figure.layout.yaxis), "low", "high", "what", ...stored.axes]];
  const plain = (value) => (typeof value === "string" ? decoded(value) : value);
  for (const trace of figure.data.map(kept)) {
    trace.x.forEach((x, i) => {
      const bars = trace.error_y;
      const ends = trace.base ? [trace.base[i], trace.base[i] + x] : bars ? [trace.y[i] - bars.arrayminus[i], trace.y[i] + bars.array[i]] : ["", ""];
      const what = figure.picks_one && trace.group !== trace.text[i] ? `${trace.group}: ${trace.text[i]}` : trace.text[i];
      rows.push([trace.name, x, trace.y[i], ...ends, what, ...stored.tags[trace.tags[i]]].map(plain));
    });
  }
  return rows;
}

// Two commits that a reader chooses, and the time of one case over all commits.
const eraOf = new Map(stored.eras.map((era) => [era.anchor, era]));
const picked = new Map();
const percent = (share) => (share >= 0 ? "+" : "") + (share * 100).toFixed(1) + "%";

// Each point as { place of its commit, seconds, interval }.
const pointsOf = (one) => one.seconds.map((seconds, i) => ({ at: one.at ? one.at[i] : i, seconds, interval: one.intervals[i] }));

// Of the other pairs: medians, the slowest first, and the steps between.
function rowsBetween(era, base, head) {
  const lost = new Map(era.lost.filter(([at]) => at === head).map(([, name, ...said]) => [name, said]));
  const rows = [];
  for (const one of era.cases) {
    const points = pointsOf(one);
    const [before, now] = [base, head].map((at) => (points.find((point) => point.at === at) || {}).seconds);
    if (before === undefined && now === undefined) continue;
    const between = one.steps.filter(([start]) => points[start].at > base && points[start].at <= head);
    const [verdict, why] = (now === undefined && lost.get(one.name)) || ["", between.map(([, , words]) => words).join("; ")];
    const ms = (seconds) => (seconds === undefined ? "" : significant(seconds * 1e3));
    rows.push({ ratio: now / before, texts: [one.name, verdict, ms(before), ms(now), now && before ? (now / before).toFixed(3) : "", why] });
  }
  const place = ({ ratio }) => (Number.isNaN(ratio) ? Number.MAX_VALUE : ratio);
  return rows.sort((a, b) => place(b) - place(a) || 0).map(({ texts }) => texts);
}

function showPair(form, era, base, head) {
  const section = form.parentElement;
  const own = tables.get(section.querySelector(".scroll").id);
  const isShown = era.shown.base === base && era.shown.head === head;
  const rows = isShown ? era.shown.rows : base < head ? rowsBetween(era, base, head) : [];
  const said = isShown ? era.shown.notes : base >= head ? ["Choose a base that is older than the head."]
    : ["Medians, and the steps that the history finds between the two commits."];
  const commit = (at) => `${era.codes[at][0]} (${era.codes[at][1]}) ${era.codes[at][2]}`;
  own.table.caption.textContent = `${commit(head)} against ${commit(base)}`;
  const cellsOf = ([name, ...texts]) => [nameCell(era, name), ...texts.map((text, i) => element("td", { className: own.table.tHead.rows[0].cells[i + 1].className }, i ? text : element("span", { textContent: text, className: stored.tones[text] || "" })))];
  own.table.tBodies[0].replaceChildren(...rows.map((row) => element("tr", {}, ...cellsOf(row))));
  section.querySelector(".said").replaceChildren(...said.map((line) => element("p", { className: "note", textContent: line })));
  readRows(own);
  stack(own);
}

function nameCell(era, name) {
  const place = era.cases.findIndex((one) => one.name === name);
  return element("td", {}, place < 0 ? name : element("a", { href: `#${era.anchor}-c${place}`, textContent: name }));
}

function offerCommits() {
  for (const form of document.querySelectorAll("form.commits")) {
    const era = eraOf.get(form.dataset.era);
    form.hidden = false;
    form.addEventListener("change", () => {
      const [base, head] = ["base", "head"].map((side) => Number(form.querySelector(`[data-side=${side}]`).value));
      showPair(form, era, base, head);
    });
  }
}

// How far the largest step of a case goes.
const moved = (one) => Math.max(0, ...one.steps.map(([, effect]) => Math.abs(effect)));
const tellsMore = (one, other) => moved(one) - moved(other) || one.seconds.length - other.seconds.length;

function paintCommits(div) {
  const era = eraOf.get(div.dataset.era);
  if (div.dataset.case !== undefined) return paintCase(div, era, Number(div.dataset.case));
  const fit = era.cases.map((one, i) => i).filter((i) => fits(stored.tags[stored.cases[era.cases[i].name]] || []) && says(era.cases[i].name.toLowerCase()));
  if (!fit.includes(picked.get(era.anchor))) picked.set(era.anchor, fit.reduce((a, b) => (tellsMore(era.cases[b], era.cases[a]) > 0 ? b : a), fit[0] || 0));
  const place = picked.get(era.anchor);
  const names = (fit.length ? fit : [0]).map((i) => [String(i), era.cases[i].name]);
  offerChoice(div, names, String(place), (value) => { picked.set(era.anchor, Number(value)); draw(div); });
  paintCase(div, era, place);
}

// Noise does not fill the height: the range reaches at least 5 % to either side of its middle.
const LEAST_SHOWN = 0.05;
// Points that have room for a word each.
const MOST_TOLD = 8;

function paintCase(div, era, place) {
  const one = era.cases[place], points = pointsOf(one);
  // A commit of fewer than six launches has no interval; among few points each of these says how many it had.
  const isTold = points.length <= MOST_TOLD && points.some((point) => !point.interval);
  const trace = {
    type: "scatter", mode: isTold ? "lines+markers+text" : "lines+markers", textposition: "top center", cliponaxis: false, x: points.map((point) => point.at), y: points.map((point) => point.seconds * 1e3),
    text: points.map(({ at, interval }) => (interval ? "" : `launches: ${era.codes[at][3]}`)),
    hovertext: points.map(({ at }) => escaped(`${era.codes[at][0]} (${era.codes[at][1]}, ${era.codes[at][3]} launch${era.codes[at][3] === 1 ? "" : "es"}) ${era.codes[at][2]}`)),
    hovertemplate: "%{hovertext}<br>%{y} ms<extra></extra>", line: { color: "#3b82c4", width: 2 }, marker: { size: points.length > 60 ? 4 : 8 },
  };
  if (points.some((point) => point.interval)) {
    trace.error_y = {
      type: "data", symmetric: false, color: "#3b82c4", thickness: 1.2, width: 3,
      array: points.map((point) => (point.interval ? (point.interval[1] - point.seconds) * 1e3 : null)),
      arrayminus: points.map((point) => (point.interval ? (point.seconds - point.interval[0]) * 1e3 : null)),
    };
  }
  const starts = [0, ...one.steps.map(([start]) => start), points.length];
  const level = { type: "scatter", mode: "lines", x: [], y: [], hoverinfo: "skip", line: { color: "#e07b00", width: 2 } };
  for (let i = 0; one.steps.length && i + 1 < starts.length; i += 1) {
    const stretch = points.slice(starts[i], starts[i + 1]), sorted = stretch.map((point) => point.seconds * 1e3).sort((a, b) => a - b);
    const middle = (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
    level.x.push(stretch[0].at - 0.5, stretch[stretch.length - 1].at + 0.5, null);
    level.y.push(middle, middle, null);
  }
  const steps = one.steps.map(([start, effect]) => ({ x: points[start].at - 0.5, text: percent(effect) }));
  const shapes = steps.map(({ x }) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: "#e07b00", width: 2, dash: "dot" } }));
  const annotations = steps.map(({ x, text }) => ({ x, y: 1, yref: "paper", xanchor: "left", yanchor: "top", text, showarrow: false }));
  const shown = Math.max(1, Math.floor(div.clientWidth / 110)), apart = Math.max(1, Math.ceil(era.codes.length / shown));
  const ticks = era.codes.map((_, i) => i).filter((i) => i % apart === 0);
  const xaxis = { title: { text: "commit" }, automargin: true, tickvals: ticks, ticktext: ticks.map((i) => `${era.codes[i][1]}<br>${escaped(era.codes[i][0].slice(0, 8))}`), range: [-0.5, era.codes.length - 0.5] };
  const yaxis = { title: { text: "median of a commit's launches (ms)" }, automargin: true, exponentformat: "none" };
  const ends = points.flatMap(({ seconds, interval }) => [seconds, ...(interval || [])]).map((value) => value * 1e3);
  const low = ends.reduce((a, b) => Math.min(a, b)), high = ends.reduce((a, b) => Math.max(a, b)), center = (low + high) / 2;
  const half = Math.max((high - low) * 0.6, LEAST_SHOWN * center);
  yaxis.range = [Math.max(center - half, 0), center + half];
  const layout = { ...commonLayout(), shapes, annotations, height: 380, showlegend: false, xaxis: axisOf(xaxis, [], "x"), yaxis: axisOf(yaxis, [], "y"), uirevision: String(place) };
  Plotly.react(div, one.steps.length ? [trace, level] : [trace], layout, PLOT_OPTIONS).then(() => sayAboveZero(div, yaxis));
}

// What the figure over commits shows.
function commitsCsv(anchor, place) {
  drawFirst(document.getElementById(`plot-${anchor}`));
  const era = eraOf.get(anchor), one = era.cases[place ?? picked.get(anchor)];
  const rows = pointsOf(one).map(({ at, seconds, interval }) => {
    const [commit, date, subject, launches] = era.codes[at];
    return [one.name, commit, date, subject, launches, ...[seconds, ...(interval || [])].map((value) => value * 1e3)];
  });
  return [["case", "commit", "date", "subject", "launches", "median of launches (ms)", "low", "high"], ...rows];
}

const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

// A link to a case leads to its figure, with that case drawn.
function showLinkedCase() {
  const found = /^#(since\d+)-c(\d+)$/.exec(location.hash);
  if (!found || !eraOf.has(found[1])) return false;
  picked.set(found[1], Number(found[2]));
  const div = document.getElementById(`plot-${found[1]}`);
  draw(div);
  div.parentElement.scrollIntoView({ block: "start" });
  return true;
}

// Brings the page to life: tables first, which a reader sees at once, then the figures one by one.
document.documentElement.classList.add("programs");
readAddress();
for (const div of document.querySelectorAll(".scroll")) makeTable(div);
const refresh = () => {
  const count = [...tables.values()].reduce((sum, own) => sum + showRows(own), 0);
  const isAsked = words.length || Object.values(chosen).some(Boolean);
  document.getElementById("shown").textContent = isAsked ? `${count} rows fit` : "";
  drawn.forEach(draw);
};
offerFilters(refresh);
offerCommits();
for (const button of document.querySelectorAll("figure button.csv")) {
  button.hidden = false;
  button.setAttribute("aria-label", `CSV of ${button.closest("figure").querySelector(".title").textContent}`);
  const name = button.dataset.figure;
  const { era, case: place } = document.getElementById(`plot-${name}`).dataset;
  button.addEventListener("click", () => download(name, era ? commitsCsv(era, place) : figureCsv(figures.get(name))));
}
for (const div of document.querySelectorAll(".over-commits")) painters.set(div.id, paintCommits);

const waiting = new Set(document.querySelectorAll(".plot"));
const watcher = new IntersectionObserver((seen) => seen.forEach((one) => one.isIntersecting && drawFirst(one.target)));
function drawFirst(div) {
  watcher.unobserve(div);
  if (waiting.delete(div)) draw(div);
}
const isSeen = (div) => !div.closest("details:not([open])");
function drawNext() {
  const next = [...waiting].find(isSeen);
  if (!next) return;
  drawFirst(next);
  setTimeout(drawNext, 0);
}
const follow = () => showLinkedCase() || showLinkedRow();

// Pixels of a figure across A4 between its margins.
const PAPER = 640;

let width = 0;
function fit() {
  if (document.documentElement.clientWidth === width) return;
  width = document.documentElement.clientWidth;
  tables.forEach(stack);
}
fit();
addEventListener("resize", fit);
waiting.forEach((div) => watcher.observe(div));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(draw));
addEventListener("hashchange", follow);
addEventListener("beforeprint", () => {
  tables.forEach((own) => { own.all = true; showRows(own); });
  [...waiting].filter(isSeen).forEach(drawFirst);
  drawn.forEach((div) => Plotly.relayout(div, { width: PAPER, autosize: false }));
});
addEventListener("afterprint", () => drawn.forEach((div) => Plotly.relayout(div, { width: null, autosize: true })));
for (const fold of document.querySelectorAll("details")) fold.addEventListener("toggle", () => tables.forEach(stack));
if (Object.values(chosen).some(Boolean) || words.length) refresh();
follow();
setTimeout(drawNext, 0);
