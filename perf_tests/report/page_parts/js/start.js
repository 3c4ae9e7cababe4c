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
  button.addEventListener("click", () => download(name, eraOf.has(name) ? commitsCsv(name) : figureCsv(figures.get(name))));
}
for (const div of document.querySelectorAll(".over-commits")) painters.set(div.id, paintCommits);

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
const follow = () => showLinkedCase() || showLinkedRow();

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
  waiting.forEach(drawFirst);
});
if (Object.values(chosen).some(Boolean) || words.length) refresh();
follow();
setTimeout(drawNext, 0);
