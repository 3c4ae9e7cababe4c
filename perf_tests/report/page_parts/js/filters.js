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
