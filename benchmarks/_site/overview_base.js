// What the sections share.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SCALE = [0, 0.5, 0.7, 0.85, 0.95, 1.05, 1.3]; // lower ends of the classes s0 to s6
const ARROW = " \u2192 ", MINUS = "\u2212", NONE = "\u2013", TIMES = "\u00b7";

function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// What was chosen is in the address: a select's id, and the name of its option, which stays the same
// when the site is made anew. A name that is not there changes nothing.
const wanted = new URLSearchParams(location.search);

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text, name = value]) => element("option", { value, "data-name": name }, text)));
  const all = [...select.options];
  const found = all.find((option) => option.dataset.name === wanted.get(select.id)) ?? all.find(({ value }) => value === String(chosen));
  if (found) found.selected = true;
}

document.addEventListener("change", ({ target }) => {
  wanted.set(target.id, target.selectedOptions[0].dataset.name);
  history.replaceState(null, "", `?${wanted}${location.hash}`);
}, true); // before the selects' own, which may fill others

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const plain = (values) => values.map((value) => [value, value]);
const newestFirst = ({ all }) => all.slice(-8).reverse(); // DETAILED_COMMITS of overview.py
const short = (revision) => data.commits[revision].hash.slice(0, 7);
const day = (revision) =>
  new Date(data.commits[revision].time * 1000).toISOString().slice(0, 10);
const ofCommits = (revisions) => revisions.map((r) => [r, named(r), short(r)]);
const named = (revision) => `${short(revision)} ${data.commits[revision].subject}`.slice(0, 70);

function percent(change) {
  const text = (Math.abs(change) * 100).toFixed(1);
  return `${text === "0.0" ? "" : change < 0 ? MINUS : "+"}${text} %`;
}

function median(values) {
  const sorted = values.filter((value) => value !== null).sort((a, b) => a - b);
  if (!sorted.length) return null;
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// Index of a cell in asv's order: the last parameter runs fastest. NaN, which no list has, for a
// cell that is not of the grid.
function flat(grid, cell) {
  return grid.names.reduce((index, name, axis) => {
    const at = grid.values[axis].indexOf(cell[name]);
    return index * grid.values[axis].length + (at < 0 ? NaN : at);
  }, 0);
}

function cellAt(grid, index) {
  const cell = {};
  for (let axis = grid.names.length - 1; axis >= 0; axis--) {
    const values = grid.values[axis];
    cell[grid.names[axis]] = values[index % values.length];
    index = Math.floor(index / values.length);
  }
  return cell;
}

const values = (grid, name) => {
  const axis = grid.names.indexOf(name);
  return axis < 0 ? [] : grid.values[axis];
};

const described = (grid, cell) =>
  grid.names.map((name) => (name === "mib" ? `${cell[name]} MiB` : cell[name])).join(", ");

// asv's page of one cell's history; asv quotes the values that are texts.
function historyOf(benchmark, line, grid, cell) {
  const quoted = (value) => (/^[0-9.]+$/.test(value) ? value : `'${value}'`);
  const parts = Object.entries(line.params).map(([key, value]) => [key, value ?? "[none]"]);
  for (const name of grid.names) parts.push([`p-${name}`, quoted(cell[name])]);
  const encoded = parts.map((pair) => pair.map(encodeURIComponent).join("="));
  return `asv.html#${benchmark}?${encoded.join("&")}`;
}

// Drawn again whenever the width or the scheme changes.
function chart(target, make) {
  let plot = null;
  const draw = () => {
    if (plot) plot.destroy();
    const { options, series } = make();
    const width = target.clientWidth;
    plot = new uPlot({ width, height: width < 500 ? 280 : 360, ...options }, series, target);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  let seen = target.clientWidth;
  new ResizeObserver(() => {
    if (target.clientWidth !== seen) {
      seen = target.clientWidth;
      draw();
    }
  }).observe(target);
  return draw;
}

function axis(more) {
  const grid = { stroke: color("--line"), width: 1 };
  return { stroke: color("--soft"), grid, ticks: grid, font: "12px system-ui, sans-serif", ...more };
}
