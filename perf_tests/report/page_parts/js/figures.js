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
  Plotly.react(div, data, layoutOf(figure, data, div.clientWidth), PLOT_OPTIONS);
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
