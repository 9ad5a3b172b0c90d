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
    ` Last measured ${ago(last.measured)} on ${last.machine} (`, element("a", { href: last.report }, last.answer),
    "): main at ", hashLink(last.head), " against ", hashLink(last.base), ". ",
    last.waiting === 0 ? "The kernel has not changed since."
      : last.waiting ? marked(isLate, `${commitsOfTheKernel(last.waiting)} came since.`) : "",
  ];
}

function ages() {
  const newest = {};
  for (const line of [...data.speed, ...data.codegen]) newest[line.machine] ??= line;
  const machines = Object.values(newest).map(({ gpu, machine, measured, waiting, all }) => element("li", {},
    `History of ${gpu || machine}: last measured ${measured ? ago(measured) : ""} at `, hashLink(hashOf(all.at(-1))),
    "; ", marked(waiting && isOld(measured), `${commitsOfTheKernel(waiting)} not measured yet`)));
  const built = isOld(data.built) ? ": nothing updates it any more" : "";
  return [...machines, element("li", {}, marked(built, `This page was built ${ago(data.built)}${built}.`))];
}

// --- one GPU: bandwidth, shares of a copy's speed, other calls, history and changes ---

const line = () => data.speed[$("line").value];
const hashOf = (revision) => data.commits[revision].hash;
const short = (revision) => hashOf(revision).slice(0, 7);

function tiles() {
  const { gbps, copy_ratio } = line().values[$("direction").value];
  const rates = gbps.filter(Boolean), shares = copy_ratio.filter(Boolean).map((ratio) => 1 / ratio);
  const texts = [
    [shares.length ? median(shares).toFixed(2) : NONE, "median share of a copy\u2019s speed"],
    [shares.length ? Math.min(...shares).toFixed(2) : NONE, "the slowest cell\u2019s share"],
    [rates.length ? `${Math.round(Math.max(...rates))} GB/s` : NONE, "the fastest cell"],
    [`${rates.length} of ${gbps.length}`, `cells measured at ${short(line().revision)}`],
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
    const stroke = color(`--b${batch}`) || color("--ink");
    kernels.push({ label: `batch ${batch}`, stroke, width: 2.5, points: { size: 7 }, rates });
    copies.push({ label: `copy ${batch}`, stroke, ...DASHED, rates: cells.map((i, n) => rates[n] && copy_ratio[i] * rates[n]) });
  }
  const x = lengths.map(Number);
  return bySeqLen(x, x, { distr: 3, log: 2 }, [...kernels, ...copies]);
}

function trend() {
  const { all, trend: shares } = line(), points = { size: 7, show: all.length < 60 };
  const series = (label, stroke) =>
    ({ label, stroke: color(stroke), width: 2.5, points, value: (_, share) => share?.toFixed(3) ?? NONE });
  const named = (i) => (all[i] ? `${short(all[i])} ${data.commits[all[i]].subject}`.slice(0, 70) : NONE);
  return {
    series: [all.map((_, i) => i), shares.Forward, shares.Backward],
    options: {
      scales: {
        x: { time: false, range: [-0.3, all.length - 0.7] },
        y: { range: (_, low, high) => [Math.min(low ?? 1, 0.9) - 0.05, Math.max(high ?? 1, 1) + 0.05] },
      },
      axes: [
        axis({ values: (_, ticks) => ticks.map((i) => named(i).slice(0, 7)), incrs: [1, 2, 5, 10, 20, 50, 100, 200], space: 70 }),
        axis({ label: "share of a copy\u2019s speed", size: 56 }),
      ],
      series: [{ label: "commit", value: (_, i) => named(i) }, series("forward", "--b2"), series("backward", "--second")],
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
  const link = element("a", { href, title }, share.toFixed(2), ...(isBeside ? [" ", element("small", {}, rate)] : []));
  return element("td", { class: `s${SCALE.filter((low) => share >= low).length}` }, link);
}

const SCALE = [0.5, 0.7, 0.85, 0.95, 1.05, 1.3]; // lower ends of the classes s1 to s6

function scale() {
  const ends = ["", ...SCALE, ""];
  $("scale").replaceChildren(...ends.slice(1).map((high, i) => element("span", { class: `s${i}` }, `${ends[i]}\u2013${high}`)));
}

function map() {
  const direction = $("direction").value, grid = data.grid, lengths = valuesOf(grid, "seq_len");
  const head = row("th", "head\u00b7batch", ...lengths.map((s) => (s >= 1024 ? `${s / 1024}k` : s)));
  const cellsOf = (call) => lengths.map((seq_len) =>
    square("rope", direction, grid, line().values[direction], { seq_len, ...call }));
  const body = (call) => element("tbody", {}, ...valuesOf(grid, "batch").map((batch) =>
    element("tr", {}, element("th", {}, `${call.hidden_size}\u00b7${batch}`), ...cellsOf({ ...call, batch }))));
  $("map").replaceChildren(...valuesOf(grid, "format").flatMap((format) => valuesOf(grid, "dtype").map((dtype) =>
    element("div", {}, element("h3", {}, `${dtype}, ${format}`), element("table", { class: "map" },
      element("thead", {}, head.cloneNode(true)),
      ...valuesOf(grid, "hidden_size").map((hidden_size) => body({ hidden_size, dtype, format })))))));
}

function paths() {
  const { paths: measured, revision } = line(), grids = Object.entries(data.paths_grid);
  $("paths").hidden = !measured;
  if (!measured) return;
  const all = (name) => [...new Set(grids.flatMap(([, grid]) => valuesOf(grid, name)))]; // a call may lack a direction
  const dtypes = all("dtype"), sizes = all("mib");
  const columns = dtypes.flatMap((dtype) => sizes.map((mib) => ({ mib, dtype })));
  const types = dtypes.map((dtype) => element("th", { colspan: sizes.length }, dtype));
  const rows = (path) => grids.map(([direction, grid]) => element("tr", {}, element("th", {}, direction.toLowerCase()),
    ...columns.map((column) => square("paths", direction, grid, measured.values[direction], { path, ...column }, true))));
  const title = (path) => element("th", { colspan: columns.length + 1, class: "call" },
    element("code", {}, path), ` ${data.calls[path] ?? ""}`);
  $("paths-table").replaceChildren(
    element("thead", {}, element("tr", {}, element("td"), ...types), row("th", "MiB", ...columns.map(({ mib }) => mib))),
    ...all("path").map((path) => element("tbody", {}, element("tr", {}, title(path)), ...rows(path))));
  $("paths-note").textContent = measured.revision === revision ? "" : `Measured at ${short(measured.revision)}.`;
}

function changes() {
  const of = (all, revision) => Object.entries(all ?? {}).flatMap(([name, steps]) => (steps[revision] ? [[name, steps[revision]]] : []));
  $("changes").replaceChildren(...line().all.slice(-8).reverse().map((revision) => {
    const { hash, subject, time } = data.commits[revision], latencies = of(line().changes, revision);
    const counts = of(data.codegen[0]?.changes, revision).filter(([, { up, down }]) => up + down);
    const texts = [
      ...latencies.map(([name, { median }]) => `${name} ${percent(median)}`),
      ...counts.map(([name, { up, down }]) => `${name.replace("_", " ")}: ${up} up, ${down} down`),
    ];
    const links = [
      ...[...new Set(latencies.map(([, { before }]) => hashOf(before)))].map((before) =>
        [`${data.commit_url.replace(/commit\/$/, "compare/")}${before}...${hash}`, `${before.slice(0, 7)}...${hash.slice(0, 7)}`]),
      ...(data.reports[hash] ?? []).map(({ base, answer, url }) => [url, `report against ${base.slice(0, 7)}: ${answer}`]),
    ];
    return element("li", {}, hashLink(hash), " ", element("strong", {}, subject), ` ${new Date(time).toISOString().slice(0, 10)}`,
      element("div", {}, texts.join("; ") || "nothing measured before it to compare with"),
      element("small", {}, ...links.flatMap(([href, text]) => [element("a", { href }, text), " "])));
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
    return element("tr", {}, element("th", {}, name), element("td", {}, rate), element("td", {}, computes, ...texts));
  });
  const head = row("th", "library", `GB/s at ${seq_len.at(-1)}`, "what it computes");
  $("peers-table").replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows));
}

function codegen() {
  const { before, all, values, earlier } = data.codegen[0], grid = data.codegen_grid, metrics = Object.keys(values);
  const call = Object.fromEntries([...$("codegen-call").querySelectorAll("select")].map(({ id, value }) => [id.slice(8), value]));
  const counts = (index) => metrics.map((metric) => {
    const value = values[metric][index] ?? NONE, old = earlier[metric][index] ?? value;
    return old === value ? value : `${old} \u2192 ${value}`;
  });
  $("codegen-table").replaceChildren(
    element("thead", {}, row("th", "architecture", ...metrics.map((metric) => metric.replace("_", " ")))),
    element("tbody", {}, ...valuesOf(grid, "target").map((target) => row("td", target, ...counts(indexOf(grid, { ...call, target }))))));
  $("codegen-commit").replaceChildren(hashLink(hashOf(all.at(-1))), ...(before === null ? [] : [" after ", hashLink(hashOf(before))]));
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
  $("peers").hidden = false;
  drawOn(["peers-batch"], chart($("peers-chart"), peersChart), peersTable);
}

function startCodegen() {
  const usual = { dtype: "bfloat16", format: "sbhd", direction: "forward", hidden_size: "128", size: "large" };
  const names = data.codegen_grid.names.filter((name) => name !== "target");
  for (const name of names) {
    const select = element("select", { id: `codegen-${name}` });
    fill(select, plain(valuesOf(data.codegen_grid, name)), usual[name]);
    $("codegen-call").append(element("label", {}, name.replace("_", " "), select));
  }
  $("codegen").hidden = false;
  drawOn(names.map((name) => `codegen-${name}`), codegen);
}

$("answer").replaceChildren(...answer());
$("ages").replaceChildren(...ages());
if (data.speed.length) startSpeed();
else $("empty").hidden = false;
if (data.peers) startPeers();
if (data.codegen.length) startCodegen();
if (location.hash) $(location.hash.slice(1))?.scrollIntoView(); // it may have been hidden
document.documentElement.dataset.ready = "yes"; // everything is drawn
