// Two commits that a reader chooses, and the time of one case over all commits.
const eraOf = new Map(stored.eras.map((era) => [era.anchor, era]));
const picked = new Map();
const percent = (share) => (share >= 0 ? "+" : "") + (share * 100).toFixed(1) + "%";

// Each point as { place of its commit, seconds, interval }.
const pointsOf = (one) => one.seconds.map((seconds, i) => ({ at: one.at ? one.at[i] : i, seconds, interval: one.intervals[i] }));

// Of commits without a verdict on this page: medians, the slowest first, and the steps between.
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
    rows.push({ ratio: now / before, texts: [one.name, verdict, ms(before), ms(now), now && before ? (now / before).toFixed(3) : "", "", why] });
  }
  const place = ({ ratio }) => (Number.isNaN(ratio) ? Number.MAX_VALUE : ratio);
  return rows.sort((a, b) => place(b) - place(a) || 0).map(({ texts }) => texts);
}

function showPair(form, era, base, head) {
  const section = form.parentElement;
  const own = tables.get(section.querySelector(".scroll").id);
  const pair = era.pairs.find((one) => one.base === base && one.head === head);
  const rows = pair ? pair.rows : base < head ? rowsBetween(era, base, head) : [];
  const said = pair ? pair.notes : base >= head ? ["Choose a base that is older than the head."]
    : ["No verdict on this pair: medians, and the steps that the history finds between the two commits."];
  const commit = (at) => `${era.codes[at][0]} (${era.codes[at][1]}) ${era.codes[at][2]}`;
  own.table.caption.textContent = `${commit(head)} against ${commit(base)}`;
  const cellsOf = ([name, ...texts]) => [nameCell(era, name), ...texts.map((text, i) => element("td", { textContent: text, className: own.table.tHead.rows[0].cells[i + 1].className }))];
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
  const era = eraOf.get(div.id.replace("plot-", ""));
  const fit = era.cases.map((one, i) => i).filter((i) => fits(stored.tags[stored.cases[era.cases[i].name]] || []) && says(era.cases[i].name.toLowerCase()));
  if (!fit.includes(picked.get(era.anchor))) picked.set(era.anchor, fit.reduce((a, b) => (tellsMore(era.cases[b], era.cases[a]) > 0 ? b : a), fit[0] || 0));
  const place = picked.get(era.anchor);
  const names = (fit.length ? fit : [0]).map((i) => [String(i), era.cases[i].name]);
  offerChoice(div, names, String(place), (value) => { picked.set(era.anchor, Number(value)); draw(div); });
  const one = era.cases[place], points = pointsOf(one);
  const trace = {
    type: "scatter", mode: "lines+markers", x: points.map((point) => point.at), y: points.map((point) => point.seconds * 1e3),
    text: points.map(({ at }) => escaped(`${era.codes[at][0]} (${era.codes[at][1]}, ${era.codes[at][3]} launches) ${era.codes[at][2]}`)),
    hovertemplate: "%{text}<br>%{y} ms<extra></extra>", line: { color: "#3b82c4", width: 2 }, marker: { size: points.length > 60 ? 4 : 8 },
    error_y: {
      type: "data", symmetric: false, color: "#3b82c4", thickness: 1.2, width: 3,
      array: points.map((point) => (point.interval ? (point.interval[1] - point.seconds) * 1e3 : 0)),
      arrayminus: points.map((point) => (point.interval ? (point.seconds - point.interval[0]) * 1e3 : 0)),
    },
  };
  const steps = one.steps.map(([start, effect]) => ({ x: points[start].at - 0.5, text: percent(effect) }));
  const shapes = steps.map(({ x }) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: "#e07b00", width: 2, dash: "dot" } }));
  const annotations = steps.map(({ x, text }) => ({ x, y: 1, yref: "paper", xanchor: "left", yanchor: "top", text, showarrow: false }));
  const shown = Math.max(1, Math.floor(div.clientWidth / 110)), apart = Math.max(1, Math.ceil(era.codes.length / shown));
  const ticks = era.codes.map((_, i) => i).filter((i) => i % apart === 0);
  const xaxis = { title: { text: "commit" }, automargin: true, tickvals: ticks, ticktext: ticks.map((i) => `${era.codes[i][1]}<br>${escaped(era.codes[i][0].slice(0, 8))}`), range: [-0.5, era.codes.length - 0.5] };
  const yaxis = { title: { text: "median of a commit's launches (ms)" }, automargin: true, exponentformat: "none" };
  const layout = { ...commonLayout(), shapes, annotations, height: 380, showlegend: false, xaxis: axisOf(xaxis, [], "x"), yaxis: axisOf(yaxis, [], "y"), uirevision: String(place) };
  Plotly.react(div, [trace], layout, PLOT_OPTIONS);
}

// What the figure over commits shows.
function commitsCsv(anchor) {
  drawFirst(document.getElementById(`plot-${anchor}`));
  const era = eraOf.get(anchor), one = era.cases[picked.get(anchor)];
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
