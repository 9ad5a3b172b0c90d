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

// --- is main slower? ---

const ANSWERS = { pass: "No.", fail: "Yes.", "cannot tell": "It cannot be told." };
const isOld = (time) => Date.now() - time > 3 * DAY; // every workflow runs once a day
const marked = (isBad, text) => element("span", isBad ? { class: "bad" } : {}, text);
const commitsOfTheKernel = (n) => `${n} commit${n === 1 ? "" : "s"} of the kernel`;

function answer() {
  const last = data.nightly;
  if (!last) return ["Unknown: this copy of the page has no answer of the nightly comparison."];
  const isLate = last.waiting !== 0 && isOld(last.measured);
  const isGood = last.answer === "pass" && !isLate;
  return [
    element("strong", { class: isGood ? "good" : "bad" }, isLate ? "Unknown." : ANSWERS[last.answer]),
    ` Last measured ${ago(last.measured)} on ${last.machine} (`,
    element("a", { href: last.report }, last.answer),
    "): main at ", hashLink(last.head), " against ", hashLink(last.base), ". ",
    last.waiting === 0 ? "The kernel has not changed since." : "",
    last.waiting ? marked(isLate, `${commitsOfTheKernel(last.waiting)} came since.`) : "",
  ];
}

function ages() {
  const newest = {};
  for (const line of [...data.speed, ...data.codegen]) newest[line.machine] ??= line;
  const machines = Object.values(newest).map(({ gpu, machine, measured, waiting, all }) => element("li", {},
    `History of ${gpu || machine}: last measured ${measured ? ago(measured) : ""} at `,
    hashLink(hashOf(all.at(-1))), "; ",
    marked(waiting && isOld(measured), `${commitsOfTheKernel(waiting)} not measured yet`)));
  const built = isOld(data.built) ? ": nothing updates it any more" : "";
  return [...machines, element("li", {}, marked(built, `This page was built ${ago(data.built)}${built}.`))];
}

// --- one GPU: bandwidth, shares of a copy's speed, other calls, history and changes ---

const line = () => data.speed[$("line").value];
const hashOf = (revision) => data.commits[revision].hash;
const short = (revision) => hashOf(revision).slice(0, 7);

function tiles() {
  const direction = $("direction").value, { revision, all, trend: medians, values } = line();
  const { gbps, copy_ratio } = values[direction];
  const ratios = copy_ratio.filter(Boolean), rates = gbps.filter(Boolean);
  const texts = [
    [medians[direction][all.indexOf(revision)]?.toFixed(2) ?? NONE, "median share of a copy\u2019s speed"],
    [ratios.length ? (1 / Math.max(...ratios)).toFixed(2) : NONE, "the slowest cell\u2019s share"],
    [rates.length ? `${Math.round(Math.max(...rates))} GB/s` : NONE, "the fastest cell"],
    [`${rates.length} of ${gbps.length}`, `cells measured at ${short(revision)}`],
  ];
  $("tiles").replaceChildren(...texts.map(([value, text]) =>
    element("div", { class: "tile" }, element("b", {}, value), element("span", {}, text))));
}

function bandwidth() {
  const grid = data.grid, { gbps, copy_ratio } = line().values[$("direction").value];
  const call = { dtype: $("dtype").value, format: $("format").value, hidden_size: $("hidden").value };
  const lengths = valuesOf(grid, "seq_len"), kernels = [], copies = [];
  for (const batch of valuesOf(grid, "batch")) {
    const cells = lengths.map((seq_len) => indexOf(grid, { ...call, batch, seq_len }));
    const rates = cells.map((index) => gbps[index] ?? null);
    const ofCopy = cells.map((index, i) => rates[i] && copy_ratio[index] * rates[i]);
    const stroke = color(`--b${batch}`) || color("--ink");
    kernels.push({ label: `batch ${batch}`, stroke, width: 2.5, points: { size: 7 }, rates });
    copies.push({ label: `copy ${batch}`, stroke, ...DASHED, rates: ofCopy });
  }
  const x = lengths.map(Number);
  return bySeqLen(x, x, { distr: 3, log: 2 }, [...kernels, ...copies]);
}

function trend() {
  const { all, trend: shares } = line(), points = { size: 7, show: all.length < 60 };
  const series = (label, stroke) =>
    ({ label, stroke: color(stroke), width: 2.5, points, value: (_, share) => share?.toFixed(3) ?? NONE });
  const named = (i) => (all[i] ? `${short(all[i])} ${data.commits[all[i]].subject}`.slice(0, 70) : NONE);
  const hashes = (ticks) => ticks.map((i) => named(i).slice(0, 7));
  return {
    series: [all.map((_, i) => i), shares.Forward, shares.Backward],
    options: {
      scales: {
        x: { time: false, range: [-0.3, all.length - 0.7] },
        y: { range: (_, low, high) => [Math.min(low ?? 1, 0.9) - 0.05, Math.max(high ?? 1, 1) + 0.05] },
      },
      axes: [
        axis({ values: (_, ticks) => hashes(ticks), incrs: [1, 2, 5, 10, 20, 50, 100, 200], space: 70 }),
        axis({ label: "share of a copy\u2019s speed", size: 56 }),
      ],
      series: [
        { label: "commit", value: (_, i) => named(i) },
        series("forward", "--b2"), series("backward", "--second"),
      ],
    },
  };
}

// A cell's share of a copy's speed, and its bandwidth: beside it, or where the mouse rests.
function square(suite, direction, grid, { gbps, copy_ratio }, cell, isBeside) {
  const index = indexOf(grid, cell);
  if (!copy_ratio[index]) return element("td", { class: "none" }, "n/a");
  const share = 1 / copy_ratio[index], rate = rounded(gbps[index]);
  const title = `${Object.values(cell).join(", ")}: ${share.toFixed(3)} of a copy's speed, ${rate} GB/s`;
  const href = historyOf(`${suite}.${direction}.track_latency`, line(), grid, cell);
  const beside = isBeside ? [" ", element("small", {}, rate)] : [];
  const link = element("a", { href, title }, share.toFixed(2), ...beside);
  return element("td", { class: `s${SCALE.filter((low) => share >= low).length}` }, link);
}

const SCALE = [0.5, 0.7, 0.85, 0.95, 1.05, 1.3]; // lower ends of the classes s1 to s6

function scale() {
  const between = SCALE.slice(1).map((high, i) => `${SCALE[i]}\u2013${high}`);
  const texts = [`< ${SCALE[0]}`, ...between, `\u2265 ${SCALE.at(-1)}`];
  $("scale").replaceChildren(...texts.map((text, i) => element("span", { class: `s${i}` }, text)));
}

function map() {
  const direction = $("direction").value, grid = data.grid, lengths = valuesOf(grid, "seq_len");
  const head = row("th", "head\u00b7batch", ...lengths.map((s) => (s >= 1024 ? `${s / 1024}k` : s)));
  const cellsOf = (call) => lengths.map((seq_len) =>
    square("rope", direction, grid, line().values[direction], { seq_len, ...call }));
  const body = (call) => element("tbody", {}, ...valuesOf(grid, "batch").map((batch) =>
    element("tr", {}, element("th", {}, `${call.hidden_size}\u00b7${batch}`), ...cellsOf({ ...call, batch }))));
  const panel = (dtype, format) => {
    const bodies = valuesOf(grid, "hidden_size").map((hidden_size) => body({ hidden_size, dtype, format }));
    const table = element("table", { class: "map" }, element("thead", {}, head.cloneNode(true)), ...bodies);
    return element("div", {}, element("h3", {}, `${dtype}, ${format}`), table);
  };
  $("map").replaceChildren(...valuesOf(grid, "format").flatMap((format) =>
    valuesOf(grid, "dtype").map((dtype) => panel(dtype, format))));
}

function paths() {
  const { paths: measured, revision } = line(), grids = Object.entries(data.paths_grid);
  $("paths").hidden = !measured;
  if (!measured) return;
  // Of both directions: a call may lack one.
  const all = (name) => [...new Set(grids.flatMap(([, grid]) => valuesOf(grid, name)))];
  const dtypes = all("dtype"), sizes = all("mib");
  const columns = dtypes.flatMap((dtype) => sizes.map((mib) => ({ mib, dtype })));
  const types = dtypes.map((dtype) => element("th", { colspan: sizes.length }, dtype));
  const squares = (direction, grid, path) => columns.map((column) =>
    square("paths", direction, grid, measured.values[direction], { path, ...column }, true));
  const body = (path) => element("tbody", {},
    element("tr", {}, element("th", { colspan: columns.length + 1, class: "call" },
      element("code", {}, path), ` ${data.calls[path] ?? ""}`)),
    ...grids.map(([direction, grid]) =>
      element("tr", {}, element("th", {}, direction.toLowerCase()), ...squares(direction, grid, path))));
  const head = element("thead", {}, element("tr", {}, element("td"), ...types),
    row("th", "MiB", ...columns.map(({ mib }) => mib)));
  $("paths-table").replaceChildren(head, ...all("path").map(body));
  $("paths-note").textContent = measured.revision === revision ? "" : `Measured at ${short(measured.revision)}.`;
}

const COMMITS = 8; // DETAILED_COMMITS of overview.py

// What a commit changed, as texts, and the addresses and texts of its links.
function change(revision) {
  const steps = (all) => Object.entries(all ?? {}).filter(([, of]) => of[revision])
    .map(([name, of]) => ({ name, ...of[revision] }));
  const latencies = steps(line().changes), counts = steps(data.codegen[0]?.changes), hash = hashOf(revision);
  const before = new Set(latencies.map((step) => hashOf(step.before)));
  const ranges = data.commit_url.replace(/commit\/$/, "compare/");
  return [
    [
      ...latencies.map(({ name, median }) => `${name} ${percent(median)}`),
      ...counts.filter(({ up, down }) => up + down)
        .map(({ name, up, down }) => `${name.replace("_", " ")}: ${up} up, ${down} down`),
    ],
    [
      ...[...before].map((base) => [`${ranges}${base}...${hash}`, `against ${base.slice(0, 7)}`]),
      ...(data.reports[hash] ?? []).map(({ base, answer, url }) =>
        [url, `report against ${base.slice(0, 7)}: ${answer}`]),
    ],
  ];
}

function changes() {
  $("changes").replaceChildren(...line().all.slice(-COMMITS).reverse().map((revision) => {
    const { hash, subject, time } = data.commits[revision], [texts, links] = change(revision);
    const date = new Date(time).toISOString().slice(0, 10);
    const more = links.flatMap(([href, text]) => [" ", element("a", { href }, text)]);
    return element("li", {}, hashLink(hash), " ", element("strong", {}, subject), ` ${date}`,
      element("div", {}, texts.join("; ") || "nothing measured before it to compare with", ...more));
  }));
}

// --- other libraries, and machine code ---

const batchOfPeers = () => data.peers.batches[$("peers-batch").value];

function peersChart() {
  const { seq_len, gbps } = batchOfPeers(), styles = { "rope-triton": { width: 5 }, copy: DASHED };
  const lines = Object.entries(gbps).map(([label, rates]) => {
    const stroke = color(`--lib-${label}`) || color("--ink");
    return { label, stroke, width: 1.75, points: { show: true, size: 4 }, rates, ...styles[label] };
  });
  return bySeqLen(seq_len, seq_len.filter((length) => length % 1024 === 0), {}, lines);
}

function peersTable() {
  const { seq_len, gbps, without } = batchOfPeers();
  const rows = Object.entries(data.peers.providers).map(([name, computes]) => {
    const gaps = without.filter(({ provider }) => provider === name);
    const texts = gaps.map(({ status, reason, count, of }) =>
      element("small", {}, `${status} at ${count} of ${of} lengths${reason ? `: ${reason}` : ""}`));
    const rate = gbps[name] ? rounded(gbps[name].at(-1)) : gaps[0].status;
    const cells = [element("td", {}, rate), element("td", {}, computes, ...texts)];
    return element("tr", {}, element("th", {}, name), ...cells);
  });
  const head = row("th", "library", `GB/s at ${seq_len.at(-1)}`, "what it computes");
  $("peers-table").replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
}

function codegen() {
  const { all, call, counts } = data.codegen[0], metrics = Object.keys(counts);
  const text = (target, [newest, earlier]) => {
    const value = newest[target] ?? NONE, old = earlier?.[target] ?? value;
    return old === value ? value : `${old} \u2192 ${value}`;
  };
  const rows = Object.keys(counts[metrics[0]][0]).map((target) =>
    row("td", target, ...metrics.map((metric) => text(target, counts[metric]))));
  const head = row("th", "architecture", ...metrics.map((metric) => metric.replace("_", " ")));
  const [newest, ...before] = all.slice(-2).reverse().map((revision) => hashLink(hashOf(revision)));
  $("codegen-table").replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
  $("codegen-what").replaceChildren(`${call}, at `, newest, before.length ? " after " : "", ...before);
  $("codegen").hidden = false;
}

// --- the start ---

// Draw now, and whenever one of the selects changes.
function drawOn(ids, ...draw) {
  const drawAll = () => draw.forEach((one) => one());
  for (const id of ids) $(id).addEventListener("change", drawAll);
  drawAll();
}

function startSpeed() {
  fill($("line"), data.speed.map(({ gpu, machine, software }, i) => [i, `${gpu || machine}: ${software}`]));
  fill($("direction"), Object.keys(data.speed[0].values).map((d) => [d, d.toLowerCase()]));
  fill($("dtype"), plain(valuesOf(data.grid, "dtype")), "bfloat16");
  fill($("format"), plain(valuesOf(data.grid, "format")), "sbhd");
  fill($("hidden"), plain(valuesOf(data.grid, "hidden_size")), "128");
  $("speed").hidden = false;
  scale();
  drawOn(["line"], paths, chart($("trend"), trend), changes);
  drawOn(["line", "direction"], tiles, map);
  drawOn(["line", "direction", "dtype", "format", "hidden"], chart($("bandwidth"), bandwidth));
}

function startPeers() {
  const { what, source: [machine, commit, command], batches } = data.peers;
  $("peers-what").textContent = what;
  $("peers-source").replaceChildren(`${machine}, ${commit}; again: `, element("code", {}, command));
  fill($("peers-batch"), batches.map(({ batch }, i) => [i, batch]));
  drawOn(["peers-batch"], chart($("peers-chart"), peersChart), peersTable);
}

$("answer").replaceChildren(...answer());
$("ages").replaceChildren(...ages());
if (data.speed.length) startSpeed();
else $("empty").hidden = false;
startPeers();
if (data.codegen.length) codegen();
if (location.hash) $(location.hash.slice(1))?.scrollIntoView(); // it may have been hidden
document.documentElement.dataset.ready = "yes"; // everything is drawn
