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
