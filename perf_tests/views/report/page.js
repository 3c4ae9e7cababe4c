"use strict";
// Draws the figures as they come into view, and filters rows and points. All data is in the page; without this program
// its text and tables are complete.
(() => {
  const FILTERS = ["size", "context", "precision", "phase"];
  const stored = JSON.parse(document.getElementById("figures").textContent);
  const xs = (own) => own.x || own.y.map((_, i) => own.x_from + i);
  const dressed = (figure) => ({
    ...figure, data: figure.data.map((own) => ({ ...stored.looks[own.look], ...own, x: xs(own) })),
  });
  const figures = new Map(stored.figures.map((one) => [one.name, dressed(one)]));
  const chosen = { size: "", context: "", precision: "", phase: "" };
  const drawn = new Set();
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const decoded = (text) => new DOMParser().parseFromString(text, "text/html").documentElement.textContent;

  // A point or row without a tag passes that filter.
  const fits = (tags) => FILTERS.every((name, i) => !chosen[name] || !tags[i] || tags[i] === chosen[name]);

  // Points with equal texts or tags share one.
  const of = (values, i) => values[values.length === 1 ? 0 : i];

  function kept(trace) {
    const places = trace.x.map((_, i) => i).filter((i) => fits(of(trace.tags, i)));
    const some = (values) => places.map((i) => of(values, i));
    const names = ["x", "y", "text", "tags"];
    const filtered = { ...trace, ...Object.fromEntries(names.map((name) => [name, some(trace[name])])) };
    if (trace.base) filtered.base = some(trace.base);
    if (trace.error_y) {
      const bars = { array: some(trace.error_y.array), arrayminus: some(trace.error_y.arrayminus) };
      filtered.error_y = { ...trace.error_y, ...bars };
    }
    return filtered;
  }

  function traces(figure) {
    const found = figure.data.map(kept).filter((trace) => trace.x.length);
    if (!figure.picks_one) return found;
    return found.filter((trace) => trace.group === figure.picked);
  }

  function layout(figure, data, width) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = (own) => ({ gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--faint"), ...own });
    const listed = data.filter((trace) => trace.showlegend);
    const longest = Math.max(8, ...listed.map((trace) => trace.name.length));
    const rows = Math.ceil(listed.length / Math.max(1, Math.floor(width / (7 * longest + 70))));
    return {
      ...figure.layout,
      xaxis: axis(figure.layout.xaxis),
      yaxis: axis(figure.layout.yaxis),
      shapes: figure.layout.shapes.map((one) => ({ ...one, label: { ...one.label, font: { color: colour("--faint"), size: 11 } } })),
      font: { color: colour("--text"), family: "system-ui, sans-serif", size: 12 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { align: "left" },
      margin: { l: 56, r: 12, t: 30, b: 48 },
      height: 360 + (listed.length > 1 ? 19 * rows : 0),
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--line"), activecolor: colour("--faint") },
      ...(figure.layout.xaxis.type === "category" ? { scattermode: "group" } : {}),
      showlegend: listed.length > 1,
      legend: { orientation: "h", x: 0, xanchor: "left", yref: "container", y: 0, yanchor: "bottom", itemwidth: 48 },
      uirevision: figure.picked || "same",
    };
  }

  function draw(div) {
    const figure = figures.get(div.id.replace("plot-", ""));
    if (figure.picks_one) offerCases(div, figure);
    const data = traces(figure);
    const options = {
      responsive: true, displaylogo: false, showSendToCloud: false, modeBarButtonsToRemove: ["select2d", "lasso2d"],
    };
    Plotly.react(div, data, layout(figure, data, div.clientWidth), options);
    drawn.add(div);
  }

  function offerCases(div, figure) {
    let select = div.previousElementSibling;
    if (select.tagName !== "SELECT") {
      select = document.createElement("select");
      select.className = "pick";
      select.setAttribute("aria-label", "case");
      select.addEventListener("change", () => { figure.picked = select.value; draw(div); });
      div.before(select);
    }
    const shown = figure.data.map(kept).filter((trace) => trace.x.length);
    const names = [...new Set(shown.map((trace) => trace.group))];
    if (!names.includes(figure.picked)) figure.picked = names[0];
    select.replaceChildren(...names.map((name) => {
      const option = document.createElement("option");
      option.value = name;
      option.textContent = decoded(name);
      return option;
    }));
    select.value = figure.picked;
  }

  // Columns named like a filter hold a row's tags.
  function labelRows() {
    for (const table of document.querySelectorAll("table")) {
      const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.toLowerCase());
      const places = FILTERS.map((name) => [name, heads.indexOf(name)]).filter(([, place]) => place >= 0);
      for (const row of table.tBodies[0].rows) {
        for (const [name, place] of places) row.dataset[name] = row.cells[place].textContent;
      }
    }
  }

  function filterRows() {
    for (const row of document.querySelectorAll("tbody tr")) {
      row.hidden = !fits(FILTERS.map((name) => row.dataset[name] || ""));
    }
  }

  function refresh() {
    filterRows();
    drawn.forEach(draw);
  }

  function csv(figure) {
    const quoted = (value) => {
      const text = value === undefined || value === null ? "" : decoded(String(value));
      const plain = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? "'" + text : text;
      return /[",\n\r]/.test(plain) ? '"' + plain.replaceAll('"', '""') + '"' : plain;
    };
    const names = [decoded(figure.layout.xaxis.title.text), decoded(figure.layout.yaxis.title.text)];
    const lines = [["series", ...names, "low", "high", "what", ...FILTERS].map(quoted).join(",")];
    for (const trace of figure.data.map(kept)) {
      trace.x.forEach((x, i) => {
        const bars = trace.error_y;
        const ends = trace.base ? [trace.base[i], trace.base[i] + x] : bars ? [trace.y[i] - bars.arrayminus[i], trace.y[i] + bars.array[i]] : ["", ""];
        const what = figure.picks_one && trace.group !== trace.text[i] ? `${trace.group}: ${trace.text[i]}` : trace.text[i];
        lines.push([trace.name, x, trace.y[i], ...ends, what, ...trace.tags[i]].map(quoted).join(","));
      });
    }
    return lines.join("\n") + "\n";
  }

  function download(name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(figures.get(name))], { type: "text/csv" }));
    link.download = name + ".csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  // Filters can be given in the address, to link to a view: report.html#?size=small
  function readAddress() {
    const [, query] = location.hash.split("?");
    for (const [name, value] of new URLSearchParams(query || "")) if (FILTERS.includes(name)) chosen[name] = value;
  }

  readAddress();
  labelRows();
  const form = document.getElementById("filters");
  if (form) {
    form.hidden = false;
    for (const select of form.querySelectorAll("select")) {
      select.value = chosen[select.dataset.filter];
      select.addEventListener("change", () => { chosen[select.dataset.filter] = select.value; refresh(); });
    }
  }
  for (const button of document.querySelectorAll("button.csv")) {
    button.hidden = false;
    button.addEventListener("click", () => download(button.dataset.figure));
  }
  dark.addEventListener("change", () => drawn.forEach(draw));
  // Figures in view are drawn at once, the others one by one when the page is idle, and all before printing.
  const waiting = new Set(document.querySelectorAll(".plot"));
  const watcher = new IntersectionObserver((seen) => seen.forEach((one) => one.isIntersecting && drawFirst(one.target)));
  function drawFirst(div) {
    watcher.unobserve(div);
    if (waiting.delete(div)) draw(div);
  }
  function drawNext() {
    const [next] = waiting;
    if (!next) return;
    drawFirst(next);
    setTimeout(drawNext, 0);
  }
  waiting.forEach((div) => watcher.observe(div));
  addEventListener("beforeprint", () => waiting.forEach(drawFirst));
  setTimeout(drawNext, 0);
  filterRows();
})();
