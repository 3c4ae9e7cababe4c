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
