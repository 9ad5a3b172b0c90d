"use strict";
(() => {
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

  function fill(select, options, chosen) {
    select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
    if (options.some(([value]) => String(value) === String(chosen))) select.value = chosen;
  }

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const plain = (values) => values.map((value) => [value, value]);
  const newestFirst = (revisions) => [...revisions].reverse();
  const short = (revision) => data.commits[revision].hash.slice(0, 7);
  const day = (revision) =>
    new Date(data.commits[revision].time * 1000).toISOString().slice(0, 10);
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

  // The widest first and the dashes last, so that lines that coincide are all seen.
  const LAYERS = { "rope-triton": 0, copy: 2 }, layer = (name) => LAYERS[name] ?? 1;
  const PEERS = { "rope-triton": { width: 6 }, "rope-triton-tables": { width: 2.5, dash: DOTS }, copy: COPY };

  // Where it stands between two gaps, a value has no piece of a line to be seen by.
  function lonely(values) {
    const none = (at) => (values[at] ?? null) === null;
    return values.flatMap((_, at) => (!none(at) && none(at - 1) && none(at + 1) ? [at] : []));
  }

  const batchOfPeers = () => data.peers.batches[$("peers-batch").value];

  function peersChart() {
    const { batch, seq_len, gbps } = batchOfPeers();
    const names = Object.keys(gbps).sort((a, b) => layer(a) - layer(b));
    const lines = names.map((name) => ({
      label: name, stroke: color(`--lib-${name}`) || color("--ink"), width: 1.75, values: gbps[name],
      points: { show: true, size: 7, filter: () => lonely(gbps[name]) }, ...PEERS[name],
    }));
    $("peers-chart").setAttribute("aria-label", `GB/s by sequence length, a line a library, batch ${batch}`);
    return bySeqLen(seq_len, seq_len.filter((length) => length % 512 === 0), {}, lines);
  }

  function peersTable() {
    const { seq_len, gbps, without } = batchOfPeers();
    const head = ["who", `GB/s at ${seq_len.at(-1)}`, "what it computes"];
    const rows = Object.entries(data.peers.providers).map(([name, computes]) => {
      const gaps = without.filter(({ provider }) => provider === name);
      const speed = gbps[name] ? whole(null, gbps[name].at(-1)) : status(gaps[0]);
      return element("tr", {}, element("th", { scope: "row" }, element("code", {}, name)),
        element("td", {}, speed), element("td", {}, computes, ...gaps.map(gap)));
    });
    $("peers-table").replaceChildren(
      element("thead", {}, element("tr", {}, ...head.map((text) => element("th", { scope: "col" }, text)))),
      element("tbody", {}, ...rows));
  }

  const status = ({ status: text }) =>
    element("span", { class: text === "wrong" || text === "failed" ? "bad" : "" }, text);

  function gap(found) {
    const { reason, count, of } = found;
    const where = count < of ? ` at ${count} of ${of} lengths` : "";
    return element("small", {}, status(found), where, reason ? `: ${reason}` : "");
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
    const key = element("span", { class: "key" }, name), worst = described(grid, cellAt(grid, change.at));
    const limit = `${data.change * 100} %`;
    const sign = change.median <= -data.change ? "good" : change.median >= data.change ? "bad" : "";
    const parts = [`${change.down} cells faster by ${limit} or more, `];
    const slower = `${change.up} slower`;
    parts.push(change.up ? element("span", { class: "bad" }, slower) : slower, ` (of ${change.cells})`);
    if (change.up) parts.push(`; worst ${percent(change.worst)} at ${worst}`);
    return element("li", {}, key, element("span", { class: sign }, percent(change.median)), " median; ", ...parts);
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

  function speedChanges(revision) {
    const grid = Object.entries(line().changes).map(([direction, steps]) => [direction, data.grid, steps]);
    const others = Object.entries(line().paths?.changes || {}).map(([direction, steps]) =>
      [`${direction}, paths`, data.paths_grid[direction], steps]);
    return [...grid, ...others].filter(([, , steps]) => steps[revision])
      .map(([name, of, steps]) => speedChange(name, of, steps[revision]));
  }

  function changes() {
    const items = newestFirst(line().all.slice(-8)).map((revision) => {
      const lines = speedChanges(revision);
      const code = codeChange(revision);
      if (code) lines.push(code);
      if (!lines.length) lines.push(element("li", {}, "nothing measured before it to compare with"));
      return element("li", {}, commitLink(revision), " ",
        element("span", { class: "what" }, data.commits[revision].subject),
        element("span", { class: "when" }, day(revision)), element("ul", {}, ...lines));
    });
    $("changes").replaceChildren(...items);
  }

  function codegen() {
    const entry = data.codegen[0], grid = data.codegen_grid, revision = Number($("codegen-commit").value);
    const call = Object.fromEntries([...$("codegen-call").querySelectorAll("select")].map((s) => [s.dataset.name, s.value]));
    const before = entry.all.slice(-8).filter((r) => r < revision).pop();
    const metrics = Object.keys(entry.values);
    const head = element("tr", {}, element("th", { scope: "col" }, "architecture"),
      ...metrics.map((metric) => element("th", { scope: "col" }, metric.replace("_", " "))));
    const rows = values(grid, "target").map((target) => {
      const index = flat(grid, { ...call, target });
      return element("tr", {}, element("th", { scope: "row" }, target), ...metrics.map((metric) => {
        const value = entry.values[metric][revision]?.[index] ?? null;
        const old = entry.values[metric][before]?.[index] ?? null;
        const was = value !== null && old !== null && old !== value ? [element("small", {}, `${old}${ARROW}`)] : [];
        return element("td", {}, ...was, value === null ? NONE : String(value));
      }));
    });
    $("codegen-table").replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
    $("codegen-note").textContent = before === undefined ? "The first commit that is shown here." :
      `Where a count changed, the one of ${short(before)}, the measured commit before, stands in front.`;
  }

  // A run that was cut off leaves a commit without a direction: there to be chosen, not to open with.
  function newestWhole(entry) {
    const known = Object.values(entry.values).map((each) => Object.keys(each.copy_ratio).map(Number));
    const whole = known[0].filter((revision) => known.every((each) => each.includes(revision)));
    return whole.length ? Math.max(...whole) : entry.all.at(-1);
  }

  function slowerCell(params, { benchmark, params: texts, change }) {
    const [suite, direction] = benchmark.split(".");
    const grid = suite === "rope" ? data.grid : data.paths_grid[direction];
    const cell = Object.fromEntries(grid.names.map((name, i) => [name, texts[i]]));
    const text = `${direction} ${described(grid, cell)}`;
    return element("li", {}, element("a", { href: historyOf(benchmark, { params }, grid, cell) }, text),
      " ", element("span", { class: "bad" }, percent(change)));
  }

  function finding(params, { kind, since, until, count, change, cells }) {
    const commits = kind === "step" ? ["step with ", hashLink(since)] : ["ramp from ", hashLink(since), " to ", hashLink(until)];
    const rest = count > cells.length ? [element("li", {}, `and ${count - cells.length} more`)] : [];
    return element("li", {}, ...commits, `: ${count} slower, `, element("span", { class: "bad" }, percent(change)),
      " in the geometric mean", element("ul", {}, ...cells.map((cell) => slowerCell(params, cell)), ...rest));
  }

  function startSlowdowns() {
    $("slowdowns-told").replaceChildren(...data.slowdowns.flatMap(({ params, status, told, findings, toolchains }) => [
      element("p", {}, element("strong", status === "slower" ? { class: "bad" } : {}, told)),
      element("ul", { class: "changes" }, ...findings.map((each) => finding(params, each)),
        ...toolchains.map((each) => element("li", {}, each.told))),
    ]));
    $("slowdowns").hidden = false;
  }

  function startSpeed() {
    const named_line = (entry) => `${entry.gpu || entry.machine}: ${entry.software}`;
    fill($("line"), data.speed.map((entry, i) => [i, named_line(entry)]), 0);
    fill($("direction"), Object.keys(data.speed[0].values).map((d) => [d, d.toLowerCase()]), "Forward");
    fill($("dtype"), plain(values(data.grid, "dtype")), "bfloat16");
    fill($("format"), plain(values(data.grid, "format")), "sbhd");
    fill($("hidden"), plain(values(data.grid, "hidden_size")), "128");
    $("speed").hidden = false;
    const drawBandwidth = chart($("bandwidth"), bandwidth), drawTrend = chart($("trend"), trend);
    const commits = () => {
      const shown = newestFirst(line().all.slice(-8)), before = Number($("commit").value);
      fill($("commit"), shown.map((r) => [r, named(r)]), shown.includes(before) ? before : newestWhole(line()));
    };
    const ofCommit = () => { tiles(); drawBandwidth(); map(); paths(); };
    const ofLine = () => { commits(); ofCommit(); drawTrend(); changes(); };
    $("line").addEventListener("change", ofLine);
    for (const id of ["commit", "direction"]) $(id).addEventListener("change", ofCommit);
    for (const id of ["dtype", "format", "hidden"]) $(id).addEventListener("change", drawBandwidth);
    scale();
    ofLine();
  }

  function startPeers() {
    const { what, source, batches } = data.peers, [machine, commit, command] = source;
    $("peers-what").textContent = what;
    $("peers-source").replaceChildren(`${machine}, ${commit}; again: `, element("code", {}, command));
    fill($("peers-batch"), batches.map(({ batch }, i) => [i, batch]), 0);
    $("peers").hidden = false;
    const draw = chart($("peers-chart"), peersChart);
    const ofBatch = () => { draw(); peersTable(); };
    $("peers-batch").addEventListener("change", ofBatch);
    ofBatch();
  }

  function startCodegen() {
    const wanted = { dtype: "bfloat16", format: "sbhd", direction: "forward", hidden_size: "128", size: "large" };
    const title = { dtype: "Type", hidden_size: "Head size" };
    for (const name of data.codegen_grid.names.filter((n) => n !== "target")) {
      const select = element("select", { "data-name": name });
      fill(select, plain(values(data.codegen_grid, name)), wanted[name]);
      select.addEventListener("change", codegen);
      $("codegen-call").append(element("label", {}, title[name] || name[0].toUpperCase() + name.slice(1), " ", select));
    }
    fill($("codegen-commit"), newestFirst(data.codegen[0].all.slice(-8)).map((r) => [r, named(r)]));
    $("codegen-commit").addEventListener("change", codegen);
    $("codegen").hidden = false;
    codegen();
  }

  if (data.slowdowns.length) startSlowdowns();
  if (data.speed.length) startSpeed();
  else $("empty").hidden = false;
  if (data.peers) startPeers();
  if (data.codegen.length) startCodegen();
  document.documentElement.dataset.ready = "yes"; // everything is drawn
})();
