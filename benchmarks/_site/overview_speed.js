// The sections of one GPU: bandwidth, shares of a copy's speed, paths, history and changes.
const line = () => data.speed[$("line").value];
const now = () => line().values[$("direction").value];

const whole = (_, value) => (value === null || value === undefined ? NONE : Math.round(value));

// GB/s by sequence length. A line has a label, a stroke and its values; the rest is uPlot's.
function bySeqLen(lengths, ticks, scale, lines) {
  return {
    series: [lengths, ...lines.map((each) => each.values)],
    options: {
      scales: { x: { time: false, ...scale }, y: { range: (_, __, high) => [0, high * 1.08] } },
      axes: [
        axis({ label: "sequence length", labelSize: 22, splits: () => ticks, filter: (_, s) => s, values: (_, s) => s.map(String) }),
        axis({ label: "GB/s", labelSize: 22, size: 56 }),
      ],
      series: [{ label: "length", value: (_, v) => v ?? NONE }, ...lines.map(({ values: _, ...each }) => ({ value: whole, ...each }))],
      legend: { markers: { dash: (plot, i) => dashOf(plot.series[i]), width: (plot, i) => plot.series[i].width } },
      cursor: { drag: { x: false, y: false } },
    },
  };
}

const DASHES = [5, 4], DOTS = [2, 3];
const dashOf = ({ dash }) => (!dash?.length ? "solid" : dash[0] < DASHES[0] ? "dotted" : "dashed");
const COPY = { width: 1, dash: DASHES, points: { show: false } };

function bandwidth() {
  const grid = data.grid, revision = $("commit").value;
  const gbps = now().gbps[revision] || [], ratio = now().copy_ratio[revision] || [];
  const lengths = values(grid, "seq_len"), batches = values(grid, "batch");
  const at = (batch, seq_len) => flat(grid, {
    seq_len, batch, dtype: $("dtype").value, format: $("format").value, hidden_size: $("hidden").value,
  });
  const kernel = batches.map((b) => lengths.map((s) => gbps[at(b, s)] ?? null));
  const copy = batches.map((b) => lengths.map((s) => {
    const [rate, share] = [gbps[at(b, s)], ratio[at(b, s)]];
    return rate && share ? rate * share : null;
  }));
  const lines = batches.map((b, i) => ({
    label: `batch ${b}`, stroke: color(`--b${b}`) || color("--ink"), width: 2.5, points: { size: 7 }, values: kernel[i],
  }));
  const dashed = batches.map((b, i) => ({
    label: `copy ${b}`, stroke: color(`--b${b}`) || color("--soft"), values: copy[i], ...COPY,
  }));
  const x = lengths.map(Number);
  $("bandwidth").setAttribute("aria-label", `GB/s by sequence length, a line a batch, commit ${short(revision)}`);
  return bySeqLen(x, x, { distr: 3, log: 2 }, [...lines, ...dashed]);
}

function trend() {
  const { all, trend: shares } = line();
  const show = (_, value) => (value === null || value === undefined ? NONE : value.toFixed(3));
  const ends = (_, low, high) => [Math.min(low ?? 1, 0.9) - 0.05, Math.max(high ?? 1, 1) + 0.05];
  const hashes = (splits) => splits.map((s) => (Number.isInteger(s) && all[s] ? short(all[s]) : ""));
  $("trend").setAttribute("aria-label", "Median share of a copy's speed by commit");
  return {
    series: [all.map((_, i) => i), shares.Forward, shares.Backward],
    options: {
      scales: { x: { time: false, range: [-0.3, all.length - 0.7] }, y: { range: ends } },
      axes: [
        axis({ values: (_, splits) => hashes(splits), incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500], space: 70 }),
        axis({ label: "share of a copy\u2019s speed", labelSize: 22, size: 56 }),
      ],
      series: [
        { label: "commit", value: (_, i) => (all[i] ? named(all[i]) : NONE) },
        { label: "forward", stroke: color("--b2"), width: 2.5, value: show, points: { size: 7, show: all.length < 60 } },
        { label: "backward", stroke: color("--second"), width: 2.5, value: show, points: { size: 7, show: all.length < 60 } },
      ],
      cursor: { drag: { x: false, y: false } },
    },
  };
}

function tiles() {
  const revision = $("commit").value, { gbps = {}, copy_ratio = {} } = now();
  const rates = (gbps[revision] || []).filter((v) => v !== null);
  const shares = (copy_ratio[revision] || []).filter(Boolean).map((r) => 1 / r);
  const tile = (value, text) => element("div", { class: "tile" }, element("b", {}, value), element("span", {}, text));
  const digits = (value) => (value === null ? NONE : value.toFixed(2));
  $("tiles").replaceChildren(
    tile(digits(median(shares)), "median share of a copy\u2019s speed"),
    tile(digits(shares.length ? Math.min(...shares) : null), "the slowest cell\u2019s share"),
    tile(rates.length ? `${Math.round(Math.max(...rates))} GB/s` : NONE, "the fastest cell"),
    tile(`${rates.length} of ${(gbps[revision] || []).length}`, `cells measured at ${short(revision)}`)
  );
}

const classOf = (share) => `s${SCALE.filter((low) => share >= low).length - 1}`;

function scale() {
  const text = (low, i) => (i === 0 ? `< ${SCALE[1]}` : i === SCALE.length - 1 ? `\u2265 ${low}` : `${low}\u2013${SCALE[i + 1]}`);
  $("scale").replaceChildren(...SCALE.map((low, i) => element("span", { class: `s${i}` }, text(low, i))));
}

function map() {
  const direction = $("direction").value, revision = $("commit").value;
  const source = { suite: "rope", direction, revision, grid: data.grid, found: now() };
  const panels = values(data.grid, "format").flatMap((format) =>
    values(data.grid, "dtype").map((dtype) => panel(source, dtype, format)));
  $("map").replaceChildren(...panels);
}

function panel(source, dtype, format) {
  const lengths = values(data.grid, "seq_len");
  const labels = lengths.map((s) => (s >= 1024 ? `${s / 1024}k` : s));
  const head = element("tr", {}, element("th", { scope: "col" }, `head${TIMES}batch`),
    ...labels.map((text) => element("th", { scope: "col" }, String(text))));
  const groups = values(data.grid, "hidden_size").map((hidden_size) =>
    element("tbody", { class: "group" }, ...values(data.grid, "batch").map((batch) =>
      element("tr", {}, element("th", { scope: "row" }, `${hidden_size}${TIMES}${batch}`),
        ...lengths.map((seq_len) => square(source, { seq_len, hidden_size, batch, dtype, format }))))));
  const columns = element("colgroup", {}, element("col"), ...lengths.map(() => element("col")));
  return element("div", {}, element("h3", {}, `${dtype}, ${format}`),
    element("table", { class: "map" }, columns, element("thead", {}, head), ...groups));
}

// Its share of a copy's speed; the bandwidth beside it if asked for, and where the mouse rests.
function square({ suite, direction, revision, grid, found, rates }, cell) {
  const index = flat(grid, cell);
  const ratio = found.copy_ratio[revision]?.[index], gbps = found.gbps[revision]?.[index];
  if (!ratio) return element("td", { class: "none", title: "not measured" }, "n/a");
  const share = 1 / ratio, rate = gbps ? String(Math.round(gbps)) : NONE;
  const title = `${described(grid, cell)}: ${share.toFixed(3)} of a copy's speed, ${rate} GB/s`;
  const href = historyOf(`${suite}.${direction}.track_latency`, line(), grid, cell);
  const beside = rates ? [" ", element("small", {}, rate)] : [];
  return element("td", { class: classOf(share) }, element("a", { href, title }, share.toFixed(2), ...beside));
}

// Of both directions: the grids differ, as a path need not have both.
function pathValues(name) {
  return [...new Set(Object.values(data.paths_grid).flatMap((grid) => values(grid, name)))];
}

function paths() {
  const found = line().paths;
  $("paths").hidden = !found;
  if (!found) return;
  const chosen = Number($("commit").value), revision = newestWithPaths(found, chosen);
  const sources = Object.entries(found.values).map(([direction, each]) => (
    { suite: "paths", direction, revision, grid: data.paths_grid[direction], found: each, rates: true }));
  const columns = pathValues("dtype").flatMap((dtype) => pathValues("mib").map((mib) => ({ mib, dtype })));
  $("paths-table").replaceChildren(...pathsHead(),
    ...pathValues("path").map((path) => pathRows(path, sources, columns)));
  $("paths-note").textContent = revision === chosen ? "" :
    `Measured at ${short(revision)}: none of them was at ${short(chosen)}.`;
}

// Up to the chosen one, so that a commit measured without the paths does not empty the table; the
// first that has them where none before does. The note says whose they are.
function newestWithPaths(found, chosen) {
  const known = Object.values(found.values).flatMap((each) => Object.keys(each.copy_ratio).map(Number));
  const earlier = known.filter((revision) => revision <= chosen);
  if (!known.length) return chosen;
  return earlier.length ? Math.max(...earlier) : Math.min(...known);
}

function pathsHead() {
  const sizes = pathValues("mib"), dtypes = pathValues("dtype");
  const types = dtypes.map((dtype) => element("th", { scope: "colgroup", colspan: sizes.length }, dtype));
  const numbers = dtypes.flatMap(() => sizes.map((mib) => element("th", { scope: "col" }, mib)));
  const group = (count) => element("colgroup", {}, ...Array.from({ length: count }, () => element("col")));
  const head = element("thead", {}, element("tr", {}, element("td"), ...types),
    element("tr", {}, element("th", { scope: "col" }, "MiB"), ...numbers));
  return [group(1), ...dtypes.map(() => group(sizes.length)), head];
}

function pathRows(path, sources, columns) {
  const call = element("th", { scope: "rowgroup", colspan: columns.length + 1, class: "call" },
    element("code", {}, path), ` ${data.calls[path] ?? ""}`);
  return element("tbody", { class: "group" }, element("tr", {}, call), ...sources.map((source) =>
    element("tr", {}, element("th", { scope: "row" }, source.direction.toLowerCase()),
      ...columns.map((column) => square(source, { path, ...column })))));
}

function speedChange(name, grid, change) {
  const key = element("span", { class: "key" }, name), { cells, judged, up, down } = change;
  const slower = `${up} slower`, parts = [percent(change.median), " median; "];
  if (judged) parts.push(up ? element("span", { class: "bad" }, slower) : slower, `, ${down} faster beyond their noise, of ${judged} cells`);
  if (up) parts.push(`; worst ${percent(change.worst)} at ${described(grid, cellAt(grid, change.at))}`);
  if (judged < cells) parts.push(`${judged ? "; " : ""}too few earlier results to judge ${cells - judged} cells`);
  return element("li", {}, key, ...parts);
}

function codeChange(revision) {
  const source = data.codegen.find((entry) => entry.all.includes(Number(revision)));
  if (!source) return null;
  const parts = Object.entries(source.changes).flatMap(([metric, steps]) => {
    const step = steps[revision];
    return step && step.up + step.down ? [`${metric.replace("_", " ")}: ${step.up} up, ${step.down} down`] : [];
  });
  const key = element("span", { class: "key" }, "Machine code");
  const first = !Object.values(source.changes).some((steps) => steps[revision]);
  if (first) return null;
  return element("li", {}, key, parts.length ? parts.join("; ") : "the same counts");
}

const hashLink = (hash) =>
  element("a", { class: "hash", href: data.commit_url + hash }, hash.slice(0, 7));
const commitLink = (revision) => hashLink(data.commits[revision].hash);

function rangeLink(base, head) {
  const href = `${data.commit_url.replace(/commit\/$/, "compare/")}${base}...${head}`;
  return element("a", { class: "hash", href }, `${base.slice(0, 7)}...${head.slice(0, 7)}`);
}

// What a comparison said of a commit, with what it was compared: not always the one measured before.
function reportLinks(head) {
  return (data.reports[head] || []).flatMap(({ base, answer, url }) =>
    [" ", element("a", { class: "report", href: url }, `report of ${base.slice(0, 7)}...${head.slice(0, 7)}: ${answer}`)]);
}

function speedChanges(revision) {
  const grid = Object.entries(line().changes).map(([direction, steps]) => [direction, data.grid, steps]);
  const others = Object.entries(line().paths?.changes || {}).map(([direction, steps]) =>
    [`${direction}, paths`, data.paths_grid[direction], steps]);
  return [...grid, ...others].map(([name, of, steps]) => [name, of, steps[revision]]).filter(([, , step]) => step);
}

function changes() {
  const items = newestFirst(line()).map((revision) => {
    const found = speedChanges(revision), { hash, subject } = data.commits[revision];
    const lines = found.map((each) => speedChange(...each)), code = codeChange(revision);
    if (code) lines.push(code);
    if (!lines.length) lines.push(element("li", {}, "nothing measured before it to compare with"));
    const ranges = [...new Set(found.map(([, , { before }]) => before))]
      .flatMap((before) => [" ", rangeLink(data.commits[before].hash, hash)]);
    return element("li", {}, commitLink(revision), " ", element("span", { class: "what" }, subject),
      element("span", { class: "when" }, day(revision)),
      element("span", { class: "links" }, ...ranges, ...reportLinks(hash)), element("ul", {}, ...lines));
  });
  $("changes").replaceChildren(...items);
}
