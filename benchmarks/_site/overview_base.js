// What the sections share.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const NONE = "\u2013", DAY = 86400000; // milliseconds, as all times

function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

const row = (tag, ...texts) => element("tr", {}, ...texts.map((text) => element(tag, {}, text)));

// A choice is in the address: a select's id, and its option's text, which a new build keeps.
const wanted = new URLSearchParams(location.search);

function fill(select, options, usual) {
  select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  const all = [...select.options], asked = wanted.get(select.id);
  const chosen = all.find(({ text }) => text === asked) ?? all.find(({ value }) => value === usual);
  if (chosen) chosen.selected = true;
}

document.addEventListener("change", ({ target }) => {
  wanted.set(target.id, target.selectedOptions[0].text);
  history.replaceState(null, "", `?${wanted}${location.hash}`);
});

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const plain = (texts) => texts.map((text) => [text, text]);
const hashLink = (hash) => element("a", { class: "hash", href: data.commit_url + hash }, hash.slice(0, 7));
const rounded = (value) => (value == null ? NONE : Math.round(value));

function ago(time) {
  const days = Math.floor((Date.now() - time) / DAY);
  return days < 1 ? "today" : `${days} day${days === 1 ? "" : "s"} ago`;
}

function percent(change) {
  const text = (Math.abs(change) * 100).toFixed(1);
  return `${text === "0.0" ? "" : change < 0 ? "\u2212" : "+"}${text} %`;
}

// Index of a cell in asv's order: the last parameter runs fastest. NaN for a cell not of the grid.
function indexOf(grid, cell) {
  return grid.names.reduce((index, name, axis) => {
    const at = grid.values[axis].indexOf(cell[name]);
    return index * grid.values[axis].length + (at < 0 ? NaN : at);
  }, 0);
}

const valuesOf = (grid, name) => grid.values[grid.names.indexOf(name)] ?? [];

// asv's page of one cell's history; asv quotes the values that are texts.
function historyOf(benchmark, { params }, grid, cell) {
  const quoted = (value) => (/^[0-9.]+$/.test(value) ? value : `'${value}'`);
  const parts = [
    ...Object.entries(params).map(([key, value]) => [key, value ?? "[none]"]),
    ...grid.names.map((name) => [`p-${name}`, quoted(cell[name])]),
  ];
  return `asv.html#${benchmark}?${parts.map((pair) => pair.map(encodeURIComponent).join("=")).join("&")}`;
}

// --- charts ---

const DASHED = { width: 1, dash: [5, 4], points: { show: false } };

// Drawn again whenever the width or the color scheme changes.
function chart(target, make) {
  let plot = null, width = 0;
  const draw = () => {
    plot?.destroy();
    width = target.clientWidth;
    const { options, series } = make();
    const size = { width, height: width < 500 ? 280 : 360 };
    plot = new uPlot({ ...size, cursor: { drag: { x: false } }, ...options }, series, target);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  new ResizeObserver(() => target.clientWidth === width || draw()).observe(target);
  return draw;
}

function axis(more) {
  const grid = { stroke: color("--line"), width: 1 }, font = "12px system-ui, sans-serif";
  return { stroke: color("--soft"), grid, ticks: grid, font, labelSize: 22, ...more };
}

// GB/s by sequence length; a line is a series of uPlot, and its `rates`.
function bySeqLen(lengths, ticks, scale, lines) {
  const [splits, values] = [() => ticks, (_, lengths) => lengths.map(String)];
  return {
    series: [lengths, ...lines.map(({ rates }) => rates)],
    options: {
      scales: { x: { time: false, ...scale }, y: { range: (_, __, high) => [0, high * 1.08] } },
      axes: [
        axis({ label: "sequence length", splits, values, filter: (_, lengths) => lengths }),
        axis({ label: "GB/s", size: 56 }),
      ],
      series: [
        { label: "length", value: (_, length) => length ?? NONE },
        ...lines.map((line) => ({ ...line, value: (_, rate) => rounded(rate) })),
      ],
    },
  };
}
