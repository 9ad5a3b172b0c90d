// The other sections, and the start.
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
  return bySeqLen(seq_len, seq_len.filter((length) => length % 1024 === 0), {}, lines);
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

function codegen() {
  const entry = data.codegen[0], grid = data.codegen_grid, revision = Number($("codegen-commit").value);
  const call = Object.fromEntries([...$("codegen-call").querySelectorAll("select")].map((s) => [s.dataset.name, s.value]));
  const before = newestFirst(entry).find((r) => r < revision);
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

function finding(params, { kind, before, since, until, count, change, cells }) {
  const commits = kind === "step" ? ["step with ", hashLink(since)] : ["ramp from ", hashLink(since), " to ", hashLink(until)];
  const reports = [...new Set([since, until])].flatMap(reportLinks);
  const rest = count > cells.length ? [element("li", {}, `and ${count - cells.length} more`)] : [];
  return element("li", {}, ...commits, `: ${count} slower, `, element("span", { class: "bad" }, percent(change)),
    " in the geometric mean, ", rangeLink(before, until), ...reports,
    element("ul", {}, ...cells.map((cell) => slowerCell(params, cell)), ...rest));
}

function startSlowdowns() {
  $("slowdowns-told").replaceChildren(...data.slowdowns.flatMap(({ params, status, told, rest, findings, toolchains }) => [
    element("p", {}, element("strong", status === "slower" ? { class: "bad" } : {}, told), " ", element("small", {}, rest)),
    element("ul", { class: "changes" }, ...findings.map((each) => finding(params, each)),
      ...toolchains.map((each) => element("li", {}, each.told))),
  ]));
  $("slowdowns").hidden = false;
}

function startSpeed() {
  const named_line = (entry) => `${entry.gpu || entry.machine}: ${entry.software}`;
  fill($("line"), data.speed.map((entry, i) => [i, named_line(entry), `${entry.machine}: ${entry.software}`]), 0);
  fill($("direction"), Object.keys(data.speed[0].values).map((d) => [d, d.toLowerCase()]), "Forward");
  fill($("dtype"), plain(values(data.grid, "dtype")), "bfloat16");
  fill($("format"), plain(values(data.grid, "format")), "sbhd");
  fill($("hidden"), plain(values(data.grid, "hidden_size")), "128");
  $("speed").hidden = false;
  const drawBandwidth = chart($("bandwidth"), bandwidth), drawTrend = chart($("trend"), trend);
  const commits = () => {
    const shown = newestFirst(line()), before = Number($("commit").value);
    fill($("commit"), ofCommits(shown), shown.includes(before) ? before : newestWhole(line()));
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
  fill($("peers-batch"), batches.map(({ batch }, i) => [i, batch, batch]), 0);
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
    const select = element("select", { id: `codegen-${name}`, "data-name": name });
    fill(select, plain(values(data.codegen_grid, name)), wanted[name]);
    select.addEventListener("change", codegen);
    $("codegen-call").append(element("label", {}, title[name] || name[0].toUpperCase() + name.slice(1), " ", select));
  }
  fill($("codegen-commit"), ofCommits(newestFirst(data.codegen[0])));
  $("codegen-commit").addEventListener("change", codegen);
  $("codegen").hidden = false;
  codegen();
}

if (data.slowdowns.length) startSlowdowns();
if (data.speed.length) startSpeed();
else $("empty").hidden = false;
if (data.peers) startPeers();
if (data.codegen.length) startCodegen();
if (location.hash) $(location.hash.slice(1))?.scrollIntoView(); // it may have been hidden
document.documentElement.dataset.ready = "yes"; // everything is drawn
