// Two commits that a reader chooses, and the time of one case over all commits.
const eraOf = new Map(stored.eras.map((era) => [era.anchor, era]));
const picked = new Map();
const ORDER = ["lost", "slower", "other", "faster"];
const percent = (share) => (share >= 0 ? "+" : "") + (share * 100).toFixed(1) + "%";

// Each point as { place of its commit, seconds, interval }.
const pointsOf = (one) => one.seconds.map((seconds, i) => ({ at: one.at ? one.at[i] : i, seconds, interval: one.intervals[i] }));

// As `_by_steps` of commits.py, for the pairs that the page does not hold: medians, and the steps between.
function rowsBetween(era, base, head) {
  const lost = new Map(era.lost.filter(([at]) => at === head).map(([, name, ...said]) => [name, said]));
  const rows = [];
  for (const one of era.cases) {
    const points = pointsOf(one);
    const [before, now] = [base, head].map((at) => (points.find((point) => point.at === at) || {}).seconds);
    if (before === undefined && now === undefined) continue;
    const ms = (seconds) => (seconds === undefined ? "" : significant(seconds * 1e3));
    const row = (kind, verdict, ratio, why) => rows.push([kind, one.name, verdict, ms(before), ms(now), ratio && ratio.toFixed(3), "", why]);
    if (now === undefined) {
      const [verdict, why] = lost.get(one.name) || ["GONE", "head does not have it"];
      row("lost", verdict, "", why);
    } else if (before === undefined) {
      row("other", "NEW", "", "base does not have it");
    } else {
      const steps = one.steps.filter(([start]) => points[start].at > base && points[start].at <= head);
      const effect = steps.reduce((product, [, one]) => product * (1 + one), 1);
      const [kind, verdict] = !steps.length ? ["other", "no step found"] : effect > 1 ? ["slower", "step up"] : ["faster", "step down"];
      const since = ([start, effect]) => `${percent(effect)} since ${era.codes[points[start].at][0]} (${era.codes[points[start].at][1]})`;
      row(kind, verdict, now / before, steps.map(since).join("; "));
    }
  }
  return withoutTwins(rows).sort((a, b) => ORDER.indexOf(a[0]) - ORDER.indexOf(b[0]) || Number(b[5] || 0) - Number(a[5] || 0));
}

// A case with another identity on either side is neither gone nor new.
function withoutTwins(rows) {
  const twins = new Set(rows.map((row) => row[1]).filter((name, i, names) => names.indexOf(name) !== i));
  const kept = rows.filter(([, name, , before, now]) => !twins.has(name) || (before && now));
  for (const [, name] of kept) twins.delete(name);
  return [...kept, ...[...twins].map((name) => ["other", name, "INCOMPARABLE", "", "", "", "", "another identity on either side"])];
}

function showPair(form, era, base, head) {
  const section = form.parentElement;
  const own = tables.get(section.querySelector(".scroll").id);
  const pair = era.pairs.find((one) => one.base === base && one.head === head);
  const rows = pair ? pair.rows : base < head ? rowsBetween(era, base, head) : [];
  const said = pair ? pair.notes : base >= head ? ["Choose a base that is older than the head."]
    : ["No verdict of the gate for this pair: shown are the steps of the history between the two commits."];
  const commit = (at) => `${era.codes[at][0]} (${era.codes[at][1]}) ${era.codes[at][2].slice(0, 60)}`;
  own.table.caption.textContent = `${commit(head)} against ${commit(base)}`;
  const cellsOf = ([, name, ...texts]) => [nameCell(era, name), ...texts.map((text, i) => element("td", { textContent: text, className: own.table.tHead.rows[0].cells[i + 1].className }))];
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
const moved = (era, place) => Math.max(0, ...era.cases[place].steps.map(([, effect]) => Math.abs(effect)));

function paintCommits(div) {
  const era = eraOf.get(div.id.replace("plot-", ""));
  const fit = era.cases.map((one, i) => i).filter((i) => fits(stored.tags[stored.cases[era.cases[i].name]] || []) && says(era.cases[i].name.toLowerCase()));
  if (!fit.includes(picked.get(era.anchor))) picked.set(era.anchor, fit.reduce((a, b) => (moved(era, b) > moved(era, a) ? b : a), fit[0] || 0));
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
